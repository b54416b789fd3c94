// Markdown as models write it, turned into elements: parsed by markdown-it, cleaned by DOMPurify.
// HTML in a text is shown as text, links lead to the web or to mail only, and images become links: nothing is loaded.

import { addBar, highlight } from "./code.js";
import { DOMPurify, markdownit } from "./libraries.js";
import { addMathRules, typesetMath } from "./maths.js";

// A longer text is shown as it is: it would be parsed again with each new token.
const MAX_PARSED = 200_000;
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const CLEAN = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    ..."a blockquote br code del div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong".split(" "),
    ..."table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["class", "href", "rel", "start", "target"],
  ALLOWED_URI_REGEXP: SAFE_LINK,
  ADD_URI_SAFE_ATTR: ["rel", "start", "target"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
};

const parser = markdownit({ html: false, linkify: true, highlight }).use(addMathRules).use(setUpRules);

function setUpRules({ linkify, renderer, utils }) {
  linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  const { rules } = renderer;
  const render = (tokens, index, options) => renderer.renderToken(tokens, index, options);
  rules.link_open = (tokens, index, options) => {
    tokens[index].attrSet("target", "_blank");
    tokens[index].attrSet("rel", "noopener noreferrer");
    return render(tokens, index, options);
  };
  rules.image = (tokens, index) => {
    const address = utils.escapeHtml(tokens[index].attrGet("src"));
    const words = utils.escapeHtml(tokens[index].content || "image");
    return `<a href="${address}" target="_blank" rel="noopener noreferrer">${words}</a>`;
  };
  rules.table_open = () => '<div class="wide"><table>';
  rules.table_close = () => "</table></div>";
  // Columns' alignment comes as a style, which the page's policy forbids.
  rules.th_open = rules.td_open = (tokens, index) => {
    const { tag } = tokens[index];
    const side = /(center|right)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    return side ? `<${tag} class="${side}">` : `<${tag}>`;
  };
}
parser.validateLink = (address) => SAFE_LINK.test(address);

/**
 * Show a text; blocks that are the same as in the last call are left alone, so that a long answer can be shown again
 * with each new token, and a selection in it stays.
 */
export function renderMarkdown(container, text) {
  const blocks = text.length > MAX_PARSED ? [plain(text)] : toBlocks(text);
  const shown = container.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && blocks[same] === shown[same]) same += 1;
  while (container.children.length > same) container.lastElementChild.remove();
  for (const block of blocks.slice(same)) container.append(toElement(block));
  container.shownBlocks = blocks;
}

const plain = (text) => `<pre><code>${parser.utils.escapeHtml(text)}</code></pre>`;

/** The text's top-level blocks, each as HTML of one element. */
function toBlocks(text) {
  const env = {};
  const tokens = parser.parse(text, env);
  const blocks = [];
  let start = 0;
  let depth = 0;
  tokens.forEach((token, index) => {
    depth += token.nesting;
    if (depth > 0) return;
    blocks.push(parser.renderer.render(tokens.slice(start, index + 1), parser.options, env));
    start = index + 1;
  });
  return blocks;
}

function toElement(html) {
  const block = document.createElement("div");
  block.append(DOMPurify.sanitize(html, CLEAN));
  block.querySelectorAll("pre").forEach(addBar);
  typesetMath(block);
  return block;
}
