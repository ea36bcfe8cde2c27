// Files for the kernel: dropped here, or chosen with the button. They are text to the kernel only.

/** A file that missed the zone: a browser would open it in the place of the notebook. */
function missed(event) {
  if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}

export function render({ model, el }) {
  const zone = document.createElement("label");
  zone.className = "lk-drop";
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.setAttribute("aria-label", "Drop in files, or choose them");
  zone.append(input, "Drop in files, or choose them");
  zone.title = model.get("hint");
  let sent = 0;
  const send = async (files) => {
    const found = [];
    for (const file of files) {
      const part = file.slice(0, model.get("bytes_max") + 1);
      const content = await part.arrayBuffer().then((bytes) => new DataView(bytes), () => null);
      found.push({ name: file.name, content, number: ++sent });
    }
    if (found.length) model.set("value", found);
    model.save_changes();
  };
  input.addEventListener("change", async () => { await send([...input.files]); input.value = ""; });
  const over = (on) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    zone.classList.toggle("lk-over", on);
  };
  for (const kind of ["dragenter", "dragover"]) zone.addEventListener(kind, over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", (event) => {
    over(false)(event);
    if (!input.disabled && event.dataTransfer) send([...event.dataTransfer.files]);
  });
  const enable = () => {
    input.disabled = model.get("disabled");
    zone.classList.toggle("lk-off", input.disabled);
  };
  model.on("change:disabled", enable);
  enable();
  el.append(zone);
  for (const kind of ["dragover", "drop"]) document.addEventListener(kind, missed);
  return () => model.off("change:disabled", enable);
}
