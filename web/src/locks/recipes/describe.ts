// Runs of a schedule and figures of a queue in words. Pure.

import type { Queue, Run, RunState } from './api';
import { count, counted, span, utc } from '../../shared/words';

/** Each state has a sign of its own: colour alone would leave people out. */
export const signs: Record<RunState, string> = {
  running: '▸',
  ok: '✓',
  failed: '✗',
  lost: '?',
  missed: '○',
  skipped: '–',
};

export const meanings: Record<RunState, string> = {
  running: 'it runs now',
  ok: 'the command ended with code 0',
  failed: 'the command ended with another code',
  lost: 'the machine began and was not heard of again: the outcome is unknown',
  missed: 'nobody ran it in time',
  skipped: 'it came due while the run before it went on',
};

/** A state that a later server may add is shown by its own word. */
export const signOf = (state: RunState): string => signs[state] ?? '·';

/** Below a second it is what a start takes. */
export const lateness = (ms: number): string => (ms < 1000 ? 'on time' : `${span(ms)} late`);

/** Ticks that nobody ran have no machine, no lateness and no length. */
export const wasRun = ({ state }: Run): boolean => state !== 'missed' && state !== 'skipped';

export function took({ started_at, ended_at }: Run): string | null {
  const ms = started_at === null || ended_at === null ? NaN : Date.parse(ended_at) - Date.parse(started_at);
  return Number.isNaN(ms) ? null : span(ms);
}

/** Which tick, or which range of ticks. */
export const ticksOf = ({ tick, upto, ticks }: Run): string =>
  ticks > 1 ? `${utc(tick)} to ${utc(upto)}` : utc(tick);

/** One run as a sentence, for titles and screen readers. */
export function sentenceOf(run: Run): string {
  const what = run.ticks > 1 ? `${run.state}, ${count(run.ticks)} ticks` : run.state;
  const said = [`${what}: ${ticksOf(run)}`];
  if (!wasRun(run)) return said.join('');
  if (run.machine !== null) said.push(`on ${run.machine}`);
  said.push(lateness(run.late_ms));
  if (run.code !== null && run.code !== 0) said.push(`exit code ${run.code}`);
  return said.join(', ');
}

/** What became of jobs that were to be retried or dropped. */
export function settled(how: 'retry' | 'drop', asked: number, done: number): string {
  const verb = how === 'retry' ? 'Retried' : 'Dropped';
  if (done === asked) return `${verb} ${counted(done, 'job')}.`;
  const gone = asked - done;
  return `${verb} ${count(done)} of ${counted(asked, 'job')}: ${gone === 1 ? 'one was' : `${count(gone)} were`} no longer dead.`;
}

export const figureNames = ['ready', 'delayed', 'taken', 'retried', 'dead'] as const;
export type FigureName = (typeof figureNames)[number];

/** The server counts no further: `COUNTED_JOBS` of the library. Waiting jobs are counted together, ready or delayed. */
const countedJobs = 10_000;

/** The figures of a queue. Where the count was not finished a plus says so. */
export function figuresOf(queue: Pick<Queue, FigureName>): Record<FigureName | 'waiting', string> {
  const say = (n: number, counted: number) => `${count(n)}${counted >= countedJobs ? '+' : ''}`;
  const { ready, delayed, taken, retried, dead } = queue;
  const waiting = ready + delayed;
  return {
    waiting: say(waiting, waiting),
    ready: say(ready, waiting),
    delayed: say(delayed, waiting),
    retried: say(retried, waiting),
    taken: say(taken, taken),
    dead: say(dead, dead),
  };
}
