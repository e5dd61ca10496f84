// When the countdown speaks. Pure.
//
// A screen reader that is told every second is told nothing: it speaks at 5, 2 and 1 minutes and at 30 seconds.

export const marks: [ms: number, words: string][] = [
  [300_000, '5 minutes left to pay for your seats.'],
  [120_000, '2 minutes left to pay for your seats.'],
  [60_000, '1 minute left to pay for your seats.'],
  [30_000, '30 seconds left to pay for your seats.'],
];

/** What to say when the time left went from `before` to `left`. Of several marks passed at once, the last. */
export function passed(before: number | null, left: number): string | null {
  if (before === null || left <= 0) return null;
  const found = marks.filter(([ms]) => before > ms && left <= ms);
  return found.at(-1)?.[1] ?? null;
}

/** `4:09`. Rounded up: what shows 0:00 is over. */
export function clockFace(ms: number): string {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}
