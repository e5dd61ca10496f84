// The page's own clock. Remaining times are counted from the moment an answer came, on the monotonic clock:
// the wall clock of an operator's computer may be wrong, or be set while the page is open.
// The one use of the wall clock is to label a moment for people (`stamp`), and there it says whose it is.

export const now = (): number => performance.now();

type Tick = (now: number) => void;

const ticks = new Set<Tick>();
const calm = window.matchMedia('(prefers-reduced-motion: reduce)');
let timer: number | undefined;

/** Calls `tick` often enough for a smooth countdown, once a second where less motion is wanted. */
export function everyTick(tick: Tick): () => void {
  ticks.add(tick);
  if (ticks.size === 1) start();
  return () => {
    ticks.delete(tick);
    if (ticks.size === 0) window.clearInterval(timer);
  };
}

function start(): void {
  window.clearInterval(timer);
  timer = window.setInterval(run, calm.matches ? 1000 : 100);
}

function run(): void {
  if (document.hidden) return;
  const moment = now();
  for (const tick of ticks) tick(moment);
}

calm.addEventListener('change', () => ticks.size > 0 && start());

/** A moment of the page's clock as date and time, by this computer's clock. */
export function stamp(moment: number): string {
  const date = new Date(Date.now() + (moment - now()));
  const two = (n: number) => String(n).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${time}.${String(date.getMilliseconds()).padStart(3, '0')}`;
}
