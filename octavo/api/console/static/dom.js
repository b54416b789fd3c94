// Building elements. Text always goes in as text; markup comes from markdown.js alone, which cleans it.

/**
 * An element with properties and children.
 *
 * @param {string} tag
 * @param {Object} properties DOM properties; names with a hyphen and "role" are set as attributes.
 * @param {...(Node|string)} children
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** A button that does something. */
export function button(label, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, label);
}

/** A button that copies what `text()` returns, and says so for a moment. */
export function copyButton(text) {
  const node = button("Copy", async () => {
    node.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => { node.textContent = "Copy"; }, 1500);
  });
  return node;
}

/** Put text on the clipboard; pages over plain HTTP have no clipboard but the selection's. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

/** Let the user save a text as a file. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export const byId = (id) => document.getElementById(id);
