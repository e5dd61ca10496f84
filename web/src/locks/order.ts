// The order of names. The server orders them by their UTF-8 bytes, which is the order of code points.
// JavaScript compares UTF-16 units, where emoji (surrogates) come before U+E000..U+FFFF: not the same order.

export function compareNames(a: string, b: string): number {
  const shorter = Math.min(a.length, b.length);
  for (let i = 0; i < shorter; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return byCodePoint(x) - byCodePoint(y);
  }
  return a.length - b.length;
}

/** Lifts surrogates above all other units. */
function byCodePoint(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit >= 0xe000 ? unit - 0x800 : unit + 0x2000;
}
