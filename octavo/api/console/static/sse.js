// Server-sent events from bytes that arrive in any pieces.

// A server that never ends its line must not fill this page's memory.
const MAX_LINE = 8 << 20;

/** Turns text, cut anywhere, into the data of events. */
export class EventParser {
  #rest = "";
  #data = [];
  #skipFeed = false;

  /** @returns {string[]} the data of the events that `text` completes */
  push(text) {
    if (this.#skipFeed && text) {
      // A line may end with CR LF, and the LF may come with the next piece.
      if (text[0] === "\n") text = text.slice(1);
      this.#skipFeed = false;
    }
    const found = [];
    const lines = (this.#rest + text).split(/\r\n|\r|\n/);
    this.#rest = lines.pop();
    if (text.endsWith("\r")) this.#skipFeed = true;
    if (this.#rest.length > MAX_LINE) throw new Error("The server sent a line that does not end.");
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) found.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return found;
  }
}
