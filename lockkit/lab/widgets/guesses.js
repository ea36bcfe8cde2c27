// One group of radio buttons: the arrow keys move the choice, and do not leave for the notebook.

/** As an app the outcome is there before the guess: what follows an open question waits for it. */
function waiting() {
  let open = false;
  for (const part of document.querySelectorAll(".jp-Cell")) {
    part.style.display = open ? "none" : "";
    open ||= Boolean(part.querySelector(".lockkit-guesses[data-holds=true]"));
  }
}

export function render({ model, el }) {
  const group = document.createElement("div");
  const name = `lockkit-guess-${Math.random()}`; // a page loads this module once for each question
  group.className = "lockkit-guesses";
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", model.get("question"));
  const boxes = model.get("options").map((option) => {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "radio";
    box.name = name;
    box.value = option;
    // A change of state waits until the one before is answered; a cell that is run would overtake it.
    box.addEventListener("change", () => model.send(option));
    label.append(box, ` ${option}`);
    group.append(label);
    return box;
  });
  const show = () => {
    for (const box of boxes) {
      box.checked = box.value === model.get("value");
      box.disabled = model.get("disabled");
    }
    const holds = String(model.get("holds") && model.get("value") === null);
    if (holds === (group.dataset.holds ?? "false")) return;
    group.dataset.holds = holds;
    waiting();
  };
  // JupyterLab would take the arrow keys and letters for its own commands.
  group.addEventListener("keydown", (event) => {
    const run = event.key === "Enter" && event.shiftKey;
    if (!run) event.stopPropagation();
    if (run || event.key === "Escape") group.closest(".jp-Cell")?.focus();
    else if (event.key === "Enter" && boxes.includes(event.target)) event.target.click();
  });
  // "Show it" is gone once it was pressed, and with it the focus: its cell has it then.
  const revealed = ({ target }) => target.closest(".lockkit-reveal")?.closest(".jp-Cell")?.focus({ preventScroll: true });
  document.addEventListener("click", revealed);
  model.on("change:value", show);
  model.on("change:disabled", show);
  model.on("change:holds", show);
  el.append(group);
  requestAnimationFrame(show);   // once it is in the page
  return () => {
    document.removeEventListener("click", revealed);
    for (const name of ["value", "disabled", "holds"]) model.off(`change:${name}`, show);
  };
}
