// Cuts a stream of server-sent events into messages. Pure.

export interface Message {
  id: string | null;
  event: string;
  data: string;
}

/** Cuts a stream of text into messages. Keeps what is not complete yet. */
export class Cutter {
  private rest = '';
  private id: string | null = null;
  private event = '';
  private data: string[] = [];

  push(text: string): Message[] {
    const messages: Message[] = [];
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') this.finish(messages);
      else this.field(line);
    }
    return messages;
  }

  private finish(messages: Message[]): void {
    if (this.data.length > 0) {
      messages.push({ id: this.id, event: this.event || 'message', data: this.data.join('\n') });
    }
    this.event = '';
    this.data = [];
  }

  private field(line: string): void {
    const colon = line.indexOf(':');
    if (colon === 0) return; // a comment: the server is alive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'data') this.data.push(value);
    else if (name === 'event') this.event = value;
    else if (name === 'id') this.id = value;
  }
}
