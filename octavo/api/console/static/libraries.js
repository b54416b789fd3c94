// The libraries that index.html loads before the modules: each puts one name into the global scope.

export const { DOMPurify, hljs, katex, markdownit, uPlot } = globalThis;
