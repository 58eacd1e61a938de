// A client as the real one is: JavaScript, HTTP from its runtime, every event of a stream looked at. One line of JSON on
// standard input asks for one answer ({socket | port, ca, path, body}); one line on standard output tells how many
// milliseconds it took.
const http = require("http"), https = require("https"), fs = require("fs"), readline = require("readline");
const plain = new http.Agent({ keepAlive: true }), agents = new Map();

function ask(order, done) {
  const options = { method: "POST", path: order.path, headers: { "x-api-key": order.key, "content-length": order.body } };
  let library = http;
  if (order.socket) Object.assign(options, { socketPath: order.socket, agent: plain });
  else {
    Object.assign(options, { host: "localhost", port: order.port, family: 4 });
    if (order.ca) {
      library = https;
      if (!agents.has(order.ca)) agents.set(order.ca, new https.Agent({ keepAlive: true, ca: fs.readFileSync(order.ca) }));
      options.agent = agents.get(order.ca);
    } else options.agent = plain;
  }
  const begun = process.hrtime.bigint();
  const request = library.request(options, (response) => {
    const decoder = new TextDecoder();
    let events = 0, rest = "";
    response.on("data", (piece) => {
      const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
      rest = lines.pop();
      events += lines.length;
    });
    response.on("end", () => done({ ms: Number(process.hrtime.bigint() - begun) / 1e6, events }));
    response.on("error", (error) => done({ error: String(error) }));
  });
  request.on("error", (error) => done({ error: String(error) }));
  request.end(Buffer.alloc(order.body));
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  ask(JSON.parse(line), (result) => console.log(JSON.stringify(result)));
});
