// A server over TLS that writes down which server each greeting asks for.
// Arguments: certificate, key, log, then addresses.
package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
)

func note(path, name string) {
	file, _ := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	fmt.Fprintf(file, "go %s\n", name)
	file.Close()
}

func main() {
	pair, err := tls.LoadX509KeyPair(os.Args[1], os.Args[2])
	if err != nil {
		panic(err)
	}
	config := &tls.Config{
		Certificates:     []tls.Certificate{pair},
		CurvePreferences: []tls.CurveID{tls.CurveP384}, // clients offer another one at first
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			note(os.Args[3], hello.ServerName)
			return nil, nil
		},
	}
	for _, address := range os.Args[4:] {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			panic(err)
		}
		go func() {
			for {
				plain, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					channel := tls.Server(plain, config)
					defer channel.Close()
					if channel.Handshake() == nil {
						buffer := make([]byte, 4096)
						channel.Read(buffer)
						channel.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\ngo"))
					}
				}()
			}
		}()
	}
	fmt.Println("listening")
	select {}
}
