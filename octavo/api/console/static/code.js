// Code blocks: highlighted, with their language and a button that copies them.

import { copyButton, element } from "./dom.js";
import { hljs } from "./libraries.js";

// Longer code is shown without colours: it is highlighted again with each new token.
const MAX_HIGHLIGHTED = 30_000;

/** Code as HTML with spans for colours; "" if its language is not known. */
export function highlight(code, language) {
  if (code.length > MAX_HIGHLIGHTED || !hljs.getLanguage(language)) return "";
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}

/** Put a bar above a code block. */
export function addBar(pre) {
  const code = pre.firstElementChild;
  const language = /(?:^|\s)language-(\S+)/.exec(code.className)?.[1] ?? "";
  const frame = element("div", { className: "code" });
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  frame.append(
    element("div", { className: "bar" }, element("span", {}, language), copyButton(() => code.textContent.trimEnd())),
    pre,
  );
}
