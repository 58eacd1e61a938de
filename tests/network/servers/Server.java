// A server over TLS that writes down which server each greeting asks for.
// Arguments: key store, log, then addresses.
import java.io.FileInputStream;
import java.io.FileWriter;
import java.net.InetAddress;
import java.security.KeyStore;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SNIMatcher;
import javax.net.ssl.SNIServerName;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;

public class Server {
    static class Note extends SNIMatcher {
        private final String path;

        Note(String path) {
            super(0);
            this.path = path;
        }

        @Override
        public boolean matches(SNIServerName name) {
            try (FileWriter file = new FileWriter(path, true)) {
                file.write("java " + new String(name.getEncoded()) + "\n");
            } catch (Exception problem) {
                return false;
            }
            return true;
        }
    }

    public static void main(String[] words) throws Exception {
        System.setProperty("jdk.tls.namedGroups", "secp384r1"); // clients offer another one at first
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(new FileInputStream(words[0]), "password".toCharArray());
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, "password".toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        for (int index = 2; index < words.length; index++) {
            String[] place = words[index].split(":");
            SSLServerSocket listener = (SSLServerSocket) context.getServerSocketFactory()
                .createServerSocket(Integer.parseInt(place[1]), 64, InetAddress.getByName(place[0]));
            SSLParameters parameters = listener.getSSLParameters();
            parameters.setSNIMatchers(List.of(new Note(words[1])));
            listener.setSSLParameters(parameters);
            new Thread(() -> {
                while (true) {
                    try {
                        SSLSocket channel = (SSLSocket) listener.accept();
                        new Thread(() -> serve(channel)).start();
                    } catch (Exception problem) {
                        return;
                    }
                }
            }).start();
        }
        System.out.println("listening");
    }

    static void serve(SSLSocket channel) {
        try (channel) {
            channel.getInputStream().read(new byte[4096]);
            channel.getOutputStream().write(
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\njava".getBytes());
        } catch (Exception problem) {
            return;
        }
    }
}
