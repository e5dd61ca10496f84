// What the server says of elections, schedules and queues, and how it is asked.

import { now } from '../../shared/clock';
import { ask, key, Problem, send } from '../../shared/http';
import { addressable } from '../api';
import { parseExactly } from './body';

export interface Election {
  name: string;
  value: string;
  token: string | null;
  /** Moments of the page's clock. */
  since: number;
  ends: number;
  queueLen: number;
}

export type RunState = 'running' | 'ok' | 'failed' | 'lost' | 'missed' | 'skipped';

/** One run, or a range of ticks that had none. Instants are the server's, in UTC. */
export interface Run {
  tick: string;
  upto: string;
  ticks: number;
  state: RunState;
  machine: string | null;
  started_at: string | null;
  ended_at: string | null;
  code: number | null;
  late_ms: number;
}

export interface RunWithTail extends Run {
  tail: string | null;
}

export interface Schedule {
  name: string;
  spec: string;
  next: { moment: number; instant: string } | null;
  /** The newest first. */
  runs: (Run & { moment: number })[];
}

export interface HotKey {
  key: string;
  jobs: number;
  oldest: number | null;
}

export interface Queue {
  name: string;
  byKey: boolean;
  paused: boolean;
  ready: number;
  delayed: number;
  taken: number;
  retried: number;
  dead: number;
  /** The moment at which the oldest waiting job was pushed. */
  oldest: number | null;
  sleepers: number;
  hotKeys: HotKey[];
}

export interface DeadLetter {
  job: string;
  attempt: number;
  key: string | null;
  error: string | null;
  made: number;
  died: number;
  body: unknown;
}

/** The address of one schedule or queue. `.` and `..` are steps in an address, so a browser cannot name them. */
function addressOf(list: string, name: string): string {
  if (!addressable(name)) throw new Problem(0, 'invalid', 'A browser cannot address this name. Use the command line.');
  return `/v1/${list}/${encodeURIComponent(name)}`;
}

const jsonType = { 'Content-Type': 'application/json' };

export async function elections(): Promise<Election[]> {
  type Wire = { name: string; value: string; token: string | null; since_ms: number; remaining_ms: number; queue_len: number };
  const said = (await ask('/v1/elections')) as { elections: Wire[] };
  const at = now();
  return said.elections.map(({ name, value, token, since_ms, remaining_ms, queue_len }) => ({
    name,
    value,
    token,
    since: at - since_ms,
    ends: at + remaining_ms,
    queueLen: queue_len,
  }));
}

export async function schedules(): Promise<Schedule[]> {
  type Wire = { name: string; spec: string; next_tick: string | null; runs: Run[] };
  const answer = await send('/v1/schedules', {}, key.get());
  const said = (await answer.json()) as { schedules: Wire[] };
  const moment = momentsBy(answer);
  return said.schedules.map(({ name, spec, next_tick, runs }) => ({
    name,
    spec,
    next: next_tick === null ? null : { moment: moment(next_tick), instant: next_tick },
    runs: runs.map((run) => ({ ...run, moment: moment(run.started_at ?? run.tick) })),
  }));
}

/**
 * Puts instants of the server on the page's clock. The answer's own Date is what they are compared with: the
 * operator's computer may have another time of day.
 */
function momentsBy(answer: Response): (instant: string) => number {
  const date = Date.parse(answer.headers.get('Date') ?? '');
  const server = Number.isNaN(date) ? Date.now() : date;
  const at = now();
  return (instant) => at + (Date.parse(instant) - server);
}

export async function runs(name: string, limit: number): Promise<RunWithTail[]> {
  const said = (await ask(`${addressOf('schedules', name)}/runs?limit=${limit}`)) as { runs: RunWithTail[] };
  return said.runs;
}

export async function queues(): Promise<Queue[]> {
  type WireKey = { key: string; jobs: number; oldest_ms: number | null };
  type Wire = Pick<Queue, 'name' | 'paused' | 'ready' | 'delayed' | 'taken' | 'retried' | 'dead' | 'sleepers'> & {
    by_key: boolean;
    oldest_ms: number | null;
    hot_keys: WireKey[];
  };
  const said = (await ask('/v1/queues')) as { queues: Wire[] };
  const at = now();
  const before = (ms: number | null) => (ms === null ? null : at - ms);
  return said.queues.map(({ by_key, oldest_ms, hot_keys, ...same }) => ({
    ...same,
    byKey: by_key,
    oldest: before(oldest_ms),
    hotKeys: hot_keys.map((hot) => ({ key: hot.key, jobs: hot.jobs, oldest: before(hot.oldest_ms) })),
  }));
}

export async function dead(queue: string, limit: number): Promise<DeadLetter[]> {
  type Wire = Pick<DeadLetter, 'attempt' | 'key' | 'error' | 'body'> & { job_id: string; age_ms: number; dead_for_ms: number };
  const answer = await send(`${addressOf('queues', queue)}/dead?limit=${limit}`, {}, key.get());
  const said = parseExactly(await answer.text()) as { dead: Wire[] };
  const at = now();
  return said.dead.map(({ job_id, age_ms, dead_for_ms, attempt, key, error, body }) => ({
    job: job_id,
    attempt,
    key,
    error,
    body,
    made: at - age_ms,
    died: at - dead_for_ms,
  }));
}

const post = (path: string, body: unknown): Promise<unknown> =>
  ask(path, { method: 'POST', headers: jsonType, body: JSON.stringify(body) });

/** Says how many there were: another operator may have been faster. */
export async function settle(queue: string, how: 'retry' | 'drop', jobs: string[]): Promise<number> {
  const said = (await post(`${addressOf('queues', queue)}/${how}`, { jobs })) as { count: number };
  return said.count;
}

export async function pause(queue: string, paused: boolean): Promise<void> {
  await post(`${addressOf('queues', queue)}/pause`, { paused });
}
