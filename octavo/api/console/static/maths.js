// Maths in Markdown: finds $…$, $$…$$, \(…\) and \[…\], and typesets them with KaTeX.

import { katex } from "./libraries.js";

const DELIMITERS = [
  { open: "$$", close: "$$", isDisplay: true },
  { open: "\\[", close: "\\]", isDisplay: true },
  { open: "\\(", close: "\\)", isDisplay: false },
  { open: "$", close: "$", isDisplay: false },
];
// What is longer or comes later stays as it was written: typesetting must not hold up the page.
const MAX_LINES = 100;
const MAX_SOURCE = 5000;
const MAX_FORMULAS = 200;

/** A plug-in for markdown-it: maths becomes elements with the class "math" that hold their TeX source. */
export function addMathRules(parser) {
  const { escapeHtml } = parser.utils;
  parser.inline.ruler.before("escape", "math_inline", findInline);
  parser.block.ruler.before("fence", "math_block", findBlock, { alt: ["paragraph", "reference", "blockquote", "list"] });
  parser.renderer.rules.math_inline = (tokens, index) => {
    const { content, meta } = tokens[index];
    return `<span class="math${meta.isDisplay ? " display" : ""}">${escapeHtml(content)}</span>`;
  };
  parser.renderer.rules.math_block = (tokens, index) => {
    const { content, meta } = tokens[index];
    return `<div class="${meta.isClosed ? "math display" : "math-source"}">${escapeHtml(content)}</div>`;
  };
}

/** Typeset the maths below an element; what KaTeX cannot read stays as its source. */
export function typesetMath(root) {
  [...root.querySelectorAll(".math")].forEach((node, index) => {
    const source = node.textContent;
    try {
      if (index >= MAX_FORMULAS || source.length > MAX_SOURCE) throw new Error("too much");
      katex.render(source, node, {
        displayMode: node.classList.contains("display"), strict: "ignore", trust: false, maxSize: 20, maxExpand: 200,
      });
    } catch {
      node.textContent = source;
      node.classList.replace("math", "math-source");
    }
  });
}

// Delimiters that open and never close, for each inline text: none is looked for twice.
const unclosed = new WeakMap();

function findInline(state, isSilent) {
  const kind = DELIMITERS.find(({ open }) => state.src.startsWith(open, state.pos));
  if (!kind) return false;
  const start = state.pos + kind.open.length;
  const end = kind.open === "$" ? endOfDollar(state, start) : endOf(state, kind, start);
  if (end <= start) return false;
  if (!isSilent) {
    const token = state.push("math_inline", "span", 0);
    token.content = state.src.slice(start, end);
    token.meta = { isDisplay: kind.isDisplay };
  }
  state.pos = end + kind.close.length;
  return true;
}

function endOf(state, { close }, start) {
  const missing = unclosed.get(state) ?? new Set();
  if (missing.has(close)) return -1;
  const end = findUnescaped(state.src, close, start);
  if (end >= 0 && end + close.length <= state.posMax) return end;
  unclosed.set(state, missing.add(close));
  return -1;
}

/** A single dollar is also money: "from $5 to $10" holds no maths. */
function endOfDollar(state, start) {
  if (/\s/.test(state.src[start] ?? " ")) return -1;
  const end = endOf(state, { close: "$" }, start);
  return end < 0 || /\s/.test(state.src[end - 1]) || /\d/.test(state.src[end + 1] ?? "") ? -1 : end;
}

function findUnescaped(text, wanted, start) {
  let at = text.indexOf(wanted, start);
  while (at > start && isEscaped(text, at, start)) at = text.indexOf(wanted, at + 1);
  return at;
}

function isEscaped(text, at, start) {
  let first = at;
  while (first > start && text[first - 1] === "\\") first -= 1;
  return (at - first) % 2 === 1;
}

/** Display maths on lines of its own; at the end of a text that is still being written it may lack its end. */
function findBlock(state, startLine, endLine, isSilent) {
  const lineAt = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();
  const kind = DELIMITERS.find(({ open, isDisplay }) => isDisplay && lineAt(startLine).startsWith(open));
  if (!kind || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [];
  let isClosed = false;
  for (let line = startLine; line < endLine && !isClosed; line += 1) {
    if (state.isEmpty(line) || state.sCount[line] < state.blkIndent || lines.length === MAX_LINES) return false;
    const text = lineAt(line).slice(line === startLine ? kind.open.length : 0);
    const end = findUnescaped(text, kind.close, 0);
    if (end >= 0 && end + kind.close.length < text.length) return false;
    isClosed = end >= 0;
    lines.push(isClosed ? text.slice(0, end) : text);
  }
  const content = lines.join("\n").trim();
  if (isClosed && !content) return false;
  if (!isSilent) {
    const token = state.push("math_block", "div", 0);
    token.content = content;
    token.meta = { isClosed };
    token.map = [startLine, startLine + lines.length];
    state.line = startLine + lines.length;
  }
  return true;
}
