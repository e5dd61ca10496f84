// Stands in front of a real `leasehold serve` and answers the routes of queues, schedules and elections from memory.
// All else, the page and the stream among it, is the server's. Elections are true: they are leases of that server.
//
// Tests change it by the methods below and look at the page, or ask `ask`; with a server that has these routes only this
// file changes: `queue` and `letter` become `leasehold queue push` and `work`, `schedule` becomes `leasehold cron`.

import http from 'node:http';

const lists = /^\/v1\/(queues|schedules|elections)(?:\/([^/?]+)\/(dead|retry|drop|pause|runs))?(?:\?(.*))?$/;

const verbatim = 'verbatim:';

export class StandIn {
  #server;
  #front;
  #queues = new Map();
  #schedules = new Map();
  #refusals = [];
  #jobs = 0;
  /** Every question about recipes: `GET /v1/queues`. */
  asked = [];

  static async before(server) {
    const standIn = new StandIn();
    standIn.#server = server;
    // A server that is down gives no answer, and so does what stands before it.
    standIn.#front = http.createServer((request, response) => standIn.#answer(request, response).catch(() => response.destroy()));
    await new Promise((done) => standIn.#front.listen(0, '127.0.0.1', done));
    standIn.url = `http://127.0.0.1:${standIn.#front.address().port}`;
    return standIn;
  }

  async stop() {
    this.#front.closeAllConnections();
    await new Promise((done) => this.#front.close(done));
  }

  // --- what there is

  queue(name, figures = {}) {
    const fresh = { by_key: false, paused: false, ready: 0, delayed: 0, taken: 0, retried: 0, oldest_ms: null, sleepers: 0, hot_keys: [] };
    const known = this.#queues.get(name) ?? { ...fresh, dead: [] };
    this.#queues.set(name, { ...known, ...figures });
  }

  /** A dead letter. Says its job. `text` is a body as it was pushed, digit by digit. */
  letter(queue, { text, body = text === undefined ? {} : verbatim + text, error = null, attempt = 20, key = null, age_ms = 90_000, dead_for_ms = 60_000 } = {}) {
    if (!this.#queues.has(queue)) this.queue(queue);
    const job_id = String((this.#jobs += 1));
    this.#queues.get(queue).dead.push({ job_id, attempt, key, error, age_ms, dead_for_ms, body });
    return job_id;
  }

  /** Another operator is faster. */
  forget(queue, job) {
    const known = this.#queues.get(queue);
    known.dead = known.dead.filter(({ job_id }) => job_id !== job);
  }

  schedule(name, { spec = '0 3 * * *', next_in_ms = 240_000, runs = [] } = {}) {
    this.#schedules.set(name, { spec, next_in_ms, runs });
  }

  /** A leader, by a lease as `leasehold elect` takes it. */
  election(name, { value = 'host-1', ttl_ms = 600_000 } = {}) {
    return this.#server.acquire(`election/${name}`, { holder: value, ttl_ms });
  }

  candidate(name, value) {
    return this.#server.queue(`election/${name}`, value);
  }

  /** From now on, questions whose address begins so get this answer. */
  refuse(path, status, code, detail) {
    this.#refusals.unshift({ path, status, problem: { code, detail } });
  }

  allow() {
    this.#refusals = [];
  }

  async ask(path, key) {
    const answer = await fetch(this.url + path, { headers: { Authorization: `Bearer ${key}` } });
    return answer.json();
  }

  // --- answering

  async #answer(request, response) {
    const found = lists.exec(request.url);
    if (found === null) return this.#pass(request, response);
    this.asked.push(`${request.method} ${request.url}`);
    const refusal = this.#refusals.find(({ path }) => request.url.startsWith(path)) ?? (await this.#unless(request));
    if (refusal) return say(response, refusal.status, refusal.problem, 'application/problem+json');
    const [, list, name, verb, query] = found;
    const limit = Number(new URLSearchParams(query).get('limit') ?? 100);
    const body = request.method === 'POST' ? JSON.parse(await textOf(request)) : null;
    const told = await this.#told(list, name && decodeURIComponent(name), verb, limit, body);
    if (told === undefined) say(response, 404, { code: 'invalid', detail: 'There is no such thing.' }, 'application/problem+json');
    else say(response, told === null ? 204 : 200, told);
  }

  /** As the server: a key it does not know gets 401, and only the role admin changes anything. */
  async #unless({ method, headers }) {
    const status = await fetch(`${this.#server.url}/v1/status`, {
      headers: headers.authorization ? { Authorization: headers.authorization } : {},
    });
    if (!status.ok) return { status: status.status, problem: await status.json() };
    const { role } = await status.json();
    if (method === 'GET' || role.includes('admin')) return null;
    return { status: 403, problem: { code: 'forbidden', detail: 'This wants the role admin.' } };
  }

  async #told(list, name, verb, limit, body) {
    if (list === 'elections') return { elections: await this.#elections() };
    if (list === 'schedules') return name === undefined ? { schedules: this.#listSchedules() } : this.#runs(name, limit);
    if (name === undefined) return { queues: [...this.#queues].map(([name, { dead, ...more }]) => ({ name, ...more, dead: dead.length })) };
    const queue = this.#queues.get(name);
    if (queue === undefined) return undefined;
    if (verb === 'dead') return { dead: queue.dead.slice(0, limit) };
    if (verb === 'pause') {
      queue.paused = body.paused;
      return null;
    }
    const count = queue.dead.filter(({ job_id }) => body.jobs.includes(job_id)).length;
    queue.dead = queue.dead.filter(({ job_id }) => !body.jobs.includes(job_id));
    if (verb === 'retry') queue.ready += count;
    return { count };
  }

  async #elections() {
    const { resources } = await this.#server.ask('GET', '/v1/resources?prefix=election/');
    return resources.map(({ name, holders: [held], queue_len }) => ({
      name: name.slice('election/'.length),
      value: held.holder,
      token: held.token,
      since_ms: held.since_ms,
      remaining_ms: held.remaining_ms,
      queue_len,
    }));
  }

  #listSchedules() {
    return [...this.#schedules].map(([name, { spec, next_in_ms, runs }]) => ({
      name,
      spec,
      last_tick: runs[0]?.upto ?? instant(-60_000),
      next_tick: next_in_ms === null ? null : instant(next_in_ms),
      runs: runs.slice(0, 30).map(({ tail, ...run }) => run),
    }));
  }

  #runs(name, limit) {
    return this.#schedules.has(name) ? { runs: this.#schedules.get(name).runs.slice(0, limit) } : undefined;
  }

  #pass(request, response) {
    const { hostname, port } = new URL(this.#server.url);
    const { host, connection, ...headers } = request.headers;
    const onward = http.request({ hostname, port, path: request.url, method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.on('error', () => response.destroy());
      answer.pipe(response);
    });
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  }
}

export const instant = (in_ms) => new Date(Date.now() + in_ms).toISOString();

/** A run that was due `ago_ms` ago. */
export function run(ago_ms, state, more = {}) {
  const tick = instant(-ago_ms);
  const none = state === 'missed' || state === 'skipped';
  return {
    tick,
    upto: tick,
    ticks: 1,
    state,
    machine: none ? null : 'host-1',
    started_at: tick,
    ended_at: state === 'ok' || state === 'failed' ? instant(-ago_ms + 12_000) : null,
    code: state === 'ok' ? 0 : state === 'failed' ? 2 : null,
    late_ms: 300,
    tail: null,
    ...more,
  };
}

function say(response, status, body, type = 'application/json') {
  response.writeHead(status, { 'Content-Type': type });
  const text = body === null ? undefined : JSON.stringify(body);
  response.end(text?.replace(/"verbatim:((?:[^"\\]|\\.)*)"/g, (_, inner) => JSON.parse(`"${inner}"`)));
}

async function textOf(request) {
  let text = '';
  for await (const part of request) text += part;
  return text;
}
