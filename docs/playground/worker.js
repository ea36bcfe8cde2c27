// Python in a worker, so that the page stays alive while it computes. A request is a generator; after
// each of its steps the worker looks for messages, and a newer request or a stop ends the older one.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const loaded = (async () => {
  postMessage({ loading: "Python is loading (about 13 MB, once)." });
  const archive = fetch(new URL("./lockkit.zip", import.meta.url)).then((answer) => {
    if (!answer.ok) throw new Error(`lockkit.zip: ${answer.status}`);
    return answer.arrayBuffer();
  });
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  postMessage({ loading: "Python is there; lockkit is being loaded." });
  python.FS.writeFile("/lockkit.zip", new Uint8Array(await archive));
  python.runPython("import sys; sys.path.insert(0, '/lockkit.zip'); sys.dont_write_bytecode = True");
  const answer = python.pyimport("lockkit.lab.playground").answer;
  postMessage({ ready: true });
  return answer;
})();
loaded.catch((error) => postMessage({ broken: `Python could not be loaded: ${error.message}` }));

let newest = 0;
const { port1: here, port2: there } = new MessageChannel();
here.start();
const breath = () => new Promise((resolve) => { here.onmessage = resolve; there.postMessage(0); });

onmessage = async ({ data }) => {
  const turn = ++newest;
  if (data.stop) return;
  const answer = await loaded;
  const steps = answer(data.request, data.given);
  try {
    let said = "{}";
    for (;;) {
      if (turn !== newest) return;
      const { value, done } = steps.next();
      if (done) break;
      said = value;
      postMessage({ id: data.id, said });
      await breath();
    }
    postMessage({ id: data.id, said, over: true });
  } catch (error) {
    postMessage({ id: data.id, said: JSON.stringify({ error: `This failed: ${error.message.trim().split("\n").pop()}` }), over: true });
  } finally {
    steps.close?.();
    steps.destroy();
  }
};
