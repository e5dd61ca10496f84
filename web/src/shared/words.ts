// Numbers and times in human words. Pure: no clock, no DOM.

/** A span, as fine as is useful at its size: `8.3 s`, `42 s`, `4 min 12 s`, `3 h 5 min`, `2 d 4 h`. */
export function span(ms: number, fine = true): string {
  const whole = Math.max(0, ms);
  if (fine && whole < 10_000) return `${(Math.floor(whole / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(whole / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return joined(minutes, 'min', seconds % 60, 's');
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return joined(hours, 'h', minutes % 60, 'min');
  return joined(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

function joined(big: number, bigUnit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
}

/** How long ago, in one unit: `just now`, `12 s ago`, `4 min ago`. */
export function ago(ms: number): string {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  if (seconds < 1) return 'just now';
  if (seconds < 60) return `${seconds} s ago`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ago`;
  return `${Math.floor(hours / 24)} d ago`;
}

/** How long until then, in one unit: `in 12 s`, `in 4 min`; once it is over, `due 4 min ago`. */
export function ahead(ms: number): string {
  if (ms <= 0) return ms > -1000 ? 'due now' : `due ${ago(-ms)}`;
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 60) return `in ${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `in ${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `in ${hours} h` : `in ${Math.floor(hours / 24)} d`;
}

/** An instant of the server (RFC 3339) for people: `2026-11-18 03:00:00 UTC`. */
export function utc(instant: string): string {
  const date = new Date(instant);
  return Number.isNaN(date.getTime()) ? instant : `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

const grouped = new Intl.NumberFormat('en-US');

export const count = (n: number): string => grouped.format(n);

/** `1 lease`, `2 leases`. */
export const counted = (n: number, noun: string, plural = `${noun}s`): string =>
  `${count(n)} ${n === 1 ? noun : plural}`;

/** Exact, for hover and focus: `12,345 ms`. */
export const exact = (ms: number): string => `${count(Math.max(0, Math.round(ms)))} ms`;

/** A rate per second, with a digit after the point while it is small. */
export function rate(perSecond: number): string {
  if (perSecond > 0 && perSecond < 0.1) return '<0.1';
  if (perSecond < 10) return String(Math.round(perSecond * 10) / 10);
  return count(Math.round(perSecond));
}

/** Parts of a stranger's text: plain, or a character that cannot be seen or that moves others about. */
export interface Part {
  text: string;
  code: boolean;
}

// Controls, format characters (bidi and zero-width among them), line separators, surrogates without their
// other half, and blanks that look like nothing or like a space.
const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\u00a0\u034f\u115f\u1160\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\uffa0]/gu;

/** Splits a name so that what cannot be seen is shown by its code, and outer spaces as open boxes. */
export const parts = (text: string): Part[] => codes(text.replace(/^ +| +$/g, (spaces) => '␣'.repeat(spaces.length)));

function codes(text: string): Part[] {
  const found: Part[] = [];
  let from = 0;
  const push = (part: string, code: boolean) => part !== '' && found.push({ text: part, code });
  for (const match of text.matchAll(unseen)) {
    push(text.slice(from, match.index), false);
    push(`U+${match[0].codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0')}`, true);
    from = match.index + match[0].length;
  }
  push(text.slice(from), false);
  return found;
}

// Colours of a terminal (SGR), as programs write them into their output.
const colours = /\u001b\[[0-9;:]*m/g;

/** Several lines of a stranger's text: lines and tabs stay, colours of a terminal go, the rest as in `parts`. */
export function lines(text: string): Part[] {
  const found: Part[] = [];
  for (const match of text.replace(colours, '').replace(/\r\n/g, '\n').matchAll(/[\n\t]+|[^\n\t]+/g)) {
    const [piece] = match;
    if (/^[\n\t]/.test(piece)) found.push({ text: piece, code: false });
    else found.push(...codes(piece));
  }
  return found;
}

/** The same as one line of plain text, for titles and labels. */
export const plain = (text: string): string =>
  parts(text)
    .map((part) => (part.code ? `⟨${part.text}⟩` : part.text))
    .join('');
