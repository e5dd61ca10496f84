// Bodies of jobs as text. Pure.
//
// Law: a number is shown as it was pushed. JavaScript rounds what is beyond 2^53, and an order number with another last
// digit is another order.

type Source = { source?: string } | undefined;
type Exact = { rawJSON?: (text: string) => unknown };

/** As JSON.parse, but numbers that JavaScript would write differently keep their text, where the browser can do it. */
export function parseExactly(text: string): unknown {
  const { rawJSON } = JSON as unknown as Exact;
  if (rawJSON === undefined) return JSON.parse(text);
  const keep = (_: string, value: unknown, context: Source): unknown =>
    typeof value === 'number' && context?.source !== undefined && context.source !== String(value)
      ? rawJSON(context.source)
      : value;
  return JSON.parse(text, keep as (name: string, value: unknown) => unknown);
}

/** More of a body, or of an error, says little more of why it failed. */
const longest = 2000;
const mostLines = 40;

/** Indented, and cut: `rest` characters are left out. */
export const pretty = (body: unknown): { text: string; rest: number } => cut(JSON.stringify(body, null, 2) ?? 'null');

/** Cuts by length and by lines, between characters and never inside one. */
export function cut(text: string, most = longest, lines = mostLines): { text: string; rest: number } {
  let end = text.split('\n', lines).join('\n').length;
  if (end > most) {
    const unit = text.charCodeAt(most - 1);
    end = unit >= 0xd800 && unit < 0xdc00 ? most - 1 : most;
  }
  return { text: text.slice(0, end), rest: text.length - end };
}
