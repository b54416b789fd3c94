// Markdown as models write it, turned into elements. A model's text never becomes markup: every piece of it ends up in a
// text node, and links lead to the web or to mail only. Images are not loaded; they show as links.

import { copyButton, element } from "./dom.js";

const MAX_DEPTH = 6; // of lists and quotes in each other, and of emphasis in emphasis
// How far ahead the end of a span is looked for, and how many marks are tried: this keeps the work linear.
const REACH = 4096;
const MAX_TRIES = 32;

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * Show a text; blocks that are the same as in the last call are left alone, so that a long answer can be shown again
 * with each new token, and a selection in it stays.
 */
export function renderMarkdown(container, text) {
  const blocks = splitBlocks(text.replace(/\r\n?/g, "\n").split("\n"));
  const shown = container.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < shown.length && blocks[same] === shown[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const block of blocks.slice(same)) container.append(renderBlock(block, 0));
  container.shownBlocks = blocks;
}

/** Lines gathered into the sources of blocks. */
export function splitBlocks(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const end = endOfBlock(lines, at);
    blocks.push(lines.slice(at, end).join("\n"));
    at = end;
  }
  return blocks;
}

function endOfBlock(lines, start) {
  const fence = FENCE.exec(lines[start]);
  if (fence) return endOfFence(lines, start, fence[2]);
  if (HEADING.test(lines[start]) || RULE.test(lines[start])) return start + 1;
  if (ITEM.test(lines[start])) return endOfList(lines, start);
  const isQuote = QUOTE.test(lines[start]);
  let end = start + 1;
  while (end < lines.length && lines[end].trim() !== "") {
    if (isQuote !== QUOTE.test(lines[end])) break;
    if (!isQuote && (FENCE.test(lines[end]) || HEADING.test(lines[end]) || ITEM.test(lines[end]))) break;
    if (!isQuote && RULE.test(lines[end]) && !TABLE_RULE.test(lines[end])) break;
    end += 1;
  }
  return end;
}

function endOfFence(lines, start, mark) {
  for (let at = start + 1; at < lines.length; at += 1) {
    const text = lines[at].trim();
    if (text.length >= mark.length && text === mark[0].repeat(text.length)) return at + 1;
  }
  return lines.length; // not closed yet: the answer is still coming
}

/** A list goes on over items of its kind, indented lines, and single empty lines between them. */
function endOfList(lines, start) {
  const [, indent, mark] = ITEM.exec(lines[start]);
  const isOther = (line) => {
    const item = ITEM.exec(line);
    return item && item[1].length <= indent.length && /\d/.test(item[2]) !== /\d/.test(mark);
  };
  let end = start + 1;
  while (end < lines.length) {
    if (isOther(lines[end])) break;
    if (lines[end].trim() === "") {
      const next = lines[end + 1];
      if (next === undefined || !(ITEM.test(next) || /^\s{2,}\S/.test(next))) break;
    } else if (RULE.test(lines[end])) {
      break;
    } else if (!ITEM.test(lines[end]) && !/^\s/.test(lines[end]) && startsBlock(lines[end])) {
      break;
    }
    end += 1;
  }
  return end;
}

const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE].some((pattern) => pattern.test(line));

function renderBlock(block, depth) {
  const lines = block.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return renderCode(lines, fence);
  const heading = HEADING.exec(lines[0]);
  // The page has headings of its own above these.
  if (heading) return element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
  if (RULE.test(lines[0])) return element("hr");
  if (depth < MAX_DEPTH && ITEM.test(lines[0])) return renderList(lines, depth);
  if (depth < MAX_DEPTH && QUOTE.test(lines[0])) {
    return element("blockquote", {}, ...renderBlocks(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
  }
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return renderTable(lines);
  return renderParagraph(lines);
}

const renderBlocks = (lines, depth) => splitBlocks(lines).map((block) => renderBlock(block, depth));

function renderParagraph(lines) {
  const paragraph = element("p");
  lines.forEach((line, index) => {
    paragraph.append(...inline(line.trim()));
    if (index < lines.length - 1) paragraph.append(/( {2}|\\)$/.test(line) ? element("br") : "\n");
  });
  return paragraph;
}

function renderCode(lines, [, indent, mark, language]) {
  const last = lines.at(-1).trim();
  const isClosed = lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
  const code = lines.slice(1, isClosed ? -1 : undefined)
    .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line)).join("\n");
  return element("div", { className: "code" },
    element("div", { className: "bar" }, element("span", {}, language.trim().split(/\s/)[0]), copyButton(() => code)),
    element("pre", { tabIndex: 0 }, element("code", {}, code)));
}

function renderList(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(first[2]);
  const base = first[1].length;
  const list = element(isOrdered ? "ol" : "ul");
  if (isOrdered) list.start = parseInt(first[2], 10);
  let item = [];
  const close = () => { if (item.length) list.append(renderItem(item, depth)); };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= base + 1) {
      close();
      item = [found[3]];
    } else {
      item.push(line.slice(Math.min(line.length - line.trimStart().length, base + 2)));
    }
  }
  close();
  return list;
}

/** An item of one paragraph is shown without a paragraph's space around it. */
function renderItem(lines, depth) {
  const blocks = renderBlocks(lines, depth + 1);
  const item = element("li");
  blocks.forEach((block, index) => {
    if (index === 0 && block.tagName === "P") item.append(...block.childNodes);
    else item.append(block);
  });
  return item;
}

function renderTable(lines) {
  const row = (line, tag) => element("tr", {}, ...cells(line).map((cell) => element(tag, {}, ...inline(cell))));
  return element("div", { className: "wide", tabIndex: 0 }, element("table", {},
    element("thead", {}, row(lines[0], "th")),
    element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")))));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

const SPECIAL = /[\\`*_~[!h]/g;

/** The spans of one line of text, as nodes. */
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = 0;
  let at = 0;
  const take = (end, node) => {
    if (at > plain) nodes.push(text.slice(plain, at));
    nodes.push(node);
    at = plain = end;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) break;
    at = found.index;
    const span = spanAt(text, at, depth);
    if (span) take(span.end, span.node);
    else at += runLength(text, at);
  }
  if (plain < text.length) nodes.push(text.slice(plain));
  return nodes;
}

/** The span that begins at a place, if one does. */
function spanAt(text, at, depth) {
  switch (text[at]) {
    case "\\":
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { end: at + 2, node: text[at + 1] } : null;
    case "`":
      return codeAt(text, at);
    case "!":
      return text[at + 1] === "[" ? linkAt(text, at + 1, depth) : null;
    case "[":
      return linkAt(text, at, depth);
    case "h":
      return addressAt(text, at);
    default:
      return depth < MAX_DEPTH ? emphasisAt(text, at, depth) : null;
  }
}

function runLength(text, at) {
  let end = at + 1;
  if (text[at] === "h" || text[at] === "\\") return 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Where `mark` stands next, within reach; -1 if it does not. */
function find(text, mark, from) {
  const index = text.slice(from, from + REACH).indexOf(mark);
  return index < 0 ? -1 : from + index;
}

function codeAt(text, at) {
  const length = runLength(text, at);
  const mark = "`".repeat(length);
  let end = find(text, mark, at + length);
  while (end >= 0 && runLength(text, end) !== length) end = find(text, mark, end + runLength(text, end));
  if (end < 0) return null;
  return { end: end + length, node: element("code", {}, text.slice(at + length, end).replace(/^ (.*\S.*) $/, "$1")) };
}

const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };

function emphasisAt(text, at, depth) {
  const run = runLength(text, at);
  if (run > 3) return null;
  const isWord = (char) => /[\p{L}\p{N}]/u.test(char ?? "");
  if (/\s/.test(text[at + run] ?? " ")) return null;
  // snake_case is a name.
  if (text[at] === "_" && isWord(text[at - 1])) return null;
  const mark = text[at].repeat(run === 3 ? 2 : run);
  const tag = TAGS[mark];
  if (!tag) return null;
  let end = at;
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    end = find(text, mark, end + runLength(text, end));
    if (end < 0 || end - at > REACH) return null;
    const closing = runLength(text, end);
    const fits = run === 3 ? closing >= 3 : closing === mark.length || closing > 2;
    if (!fits || /\s/.test(text[end - 1]) || (text[at] === "_" && isWord(text[end + closing]))) continue;
    const inner = text.slice(at + run, end);
    if (run === 3) {
      return { end: end + 3, node: element("strong", {}, element("em", {}, ...inline(inner, depth + 1))) };
    }
    // Of a longer run, the last marks are ours: **a *b***
    const extra = closing > mark.length ? closing - mark.length : 0;
    const source = text.slice(at + run, end + extra);
    return { end: end + extra + mark.length, node: element(tag, {}, ...inline(source, depth + 1)) };
  }
  return null;
}

function linkAt(text, at, depth) {
  const middle = find(text, "](", at + 1);
  if (middle < 0) return null;
  const label = text.slice(at + 1, middle);
  if (label.includes("[") || depth >= MAX_DEPTH) return null;
  const end = endOfAddress(text, middle + 2);
  if (end < 0) return null;
  const address = text.slice(middle + 2, end).trim().split(/\s/)[0];
  const node = link(address, inline(label, MAX_DEPTH));
  return node && { end: end + 1, node };
}

/** The bracket that closes a link's address, which may hold pairs of them. */
function endOfAddress(text, from) {
  let open = 0;
  for (let at = from; at < text.length && at < from + REACH; at += 1) {
    if (text[at] === "(") open += 1;
    if (text[at] === ")") {
      if (!open) return at;
      open -= 1;
    }
  }
  return -1;
}

function addressAt(text, at) {
  if (!text.startsWith("http://", at) && !text.startsWith("https://", at)) return null;
  if (/[\p{L}\p{N}]/u.test(text[at - 1] ?? "")) return null;
  const [address] = /^[^\s<>"'`*\]]+/.exec(text.slice(at, at + REACH));
  const trimmed = address.replace(/[.,:;!?]+$/, "").replace(/^([^(]*)\)+$/, "$1");
  const node = link(trimmed, [trimmed]);
  return node && { end: at + trimmed.length, node };
}

/** A link, if it leads to the web or to mail; null for anything else, such as a script. */
function link(address, label) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label);
}
