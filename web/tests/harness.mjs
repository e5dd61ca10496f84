// What the browser tests stand on: a real `leasehold serve` on free ports with a directory of its own, and
// Debian's Chromium. Nothing is shared between tests but the browser.

import { spawn, execFile } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';

const run = promisify(execFile);
const here = fileURLToPath(new URL('.', import.meta.url));
export const artifacts = join(here, '..', 'artifacts');

const binary = process.env.LEASEHOLD_BIN;
if (!binary) throw new Error('LEASEHOLD_BIN names the leasehold binary; scripts/test-web sets it');

async function freePort() {
  const probe = createServer();
  await new Promise((done) => probe.listen(0, '127.0.0.1', done));
  const { port } = probe.address();
  await new Promise((done) => probe.close(done));
  return port;
}

/** Waits until `check` gives something true, or says what it waited for. */
export async function until(what, check, ms = 30_000) {
  const end = performance.now() + ms;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (performance.now() > end) throw new Error(`waited ${ms} ms in vain: ${what}`);
    await new Promise((next) => setTimeout(next, 50));
  }
}

const running = new Set();
process.on('exit', () => {
  for (const server of running) server.abandon();
});

export class Server {
  #child = null;
  #log = '';
  #key = null;

  /** With roles, a key for each is made before the start, and `keys[role]` holds it. */
  static async start({ roles = [], args = [] } = {}) {
    const server = new Server();
    server.args = args;
    server.data = await mkdtemp(join(tmpdir(), 'leasehold-web-'));
    server.keys = {};
    running.add(server);
    try {
      for (const role of roles) server.keys[role] = await server.#makeKey(role);
      server.#key = server.keys.admin ?? null;
      await server.#upOnFreePorts();
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  }

  /** A port that was free a moment ago may be another test's by now: then there are others. */
  async #upOnFreePorts() {
    for (let tries = 1; ; tries += 1) {
      this.port = await freePort();
      this.resp = await freePort();
      this.url = `http://127.0.0.1:${this.port}`;
      try {
        return await this.up();
      } catch (error) {
        if (tries === 5 || !this.#log.includes('Address already in use')) throw error;
        this.#log = '';
      }
    }
  }

  async #makeKey(role) {
    const { stdout } = await run(binary, ['key', 'create', '--role', role, '--data', this.data]);
    return stdout.trim();
  }

  /** Takes the key of a role back while the server runs. */
  async revokeKey(role) {
    const { stdout } = await run(binary, ['key', 'ls', '--json', '--data', this.data]);
    const keys = stdout.trim().split('\n').map((line) => JSON.parse(line));
    const { id } = keys.find(({ roles }) => roles.includes(role));
    await run(binary, ['key', 'revoke', id, '--data', this.data]);
  }

  async up() {
    const where = ['--http', `127.0.0.1:${this.port}`, '--resp', `127.0.0.1:${this.resp}`];
    this.#child = spawn(binary, ['serve', '--data', this.data, ...where, ...this.args], {
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const child = this.#child;
    child.stderr.on('data', (text) => (this.#log += text));
    await until('the server answers /readyz', async () => {
      if (child.exitCode !== null) throw new Error(`the server ended at once:\n${this.#log}`);
      return fetch(`${this.url}/readyz`).then((answer) => answer.ok).catch(() => false);
    });
  }

  /** As a crash would: no goodbye. */
  async kill(signal = 'SIGKILL') {
    const child = this.#child;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((done) => child.once('exit', done));
    child.kill(signal);
    await gone;
  }

  async stop() {
    await this.kill('SIGKILL');
    await rm(this.data, { recursive: true, force: true });
    running.delete(this);
  }

  /** The last resort, when the tests themselves are ended: nothing may be awaited any more. */
  abandon() {
    this.#child?.kill('SIGKILL');
    rmSync(this.data, { recursive: true, force: true });
  }

  async ask(method, path, body, key = this.#key, more = {}) {
    const headers = { 'Content-Type': 'application/json', ...more };
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    const answer = await fetch(this.url + path, { method, headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer.status === 204 ? null : answer.json();
  }

  acquire(resource, { holder = 'test', ttl_ms = 600_000, ...more } = {}) {
    return this.ask('POST', '/v1/leases', { resources: [resource].flat(), holder, ttl_ms, ...more });
  }

  release({ lease_id }) {
    return this.ask('POST', '/v1/leases/release', { lease_id });
  }

  renew({ lease_id }, ttl_ms) {
    return this.ask('POST', '/v1/leases/renew', { lease_id, ttl_ms });
  }

  /** Stands in line and comes back once it is there. The grant, when it comes, is nobody's business here. */
  async queue(resource, holder) {
    const path = `/v1/resources/${encodeURIComponent(resource)}`;
    const before = (await this.ask('GET', path)).queue_len;
    void this.acquire(resource, { holder, wait_ms: 60_000 }).catch(() => null);
    await until(`${holder} stands in line`, async () => (await this.ask('GET', path)).queue_len === before + 1);
  }
}

const flags = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** SLOW=6 runs the page at a sixth of the speed: what only holds on a fast computer shows there. */
const slow = Number(process.env.SLOW ?? 1);

export async function openBrowser() {
  await mkdir(artifacts, { recursive: true });
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: flags });
}

/** The page, in a context of its own. Anything the browser complains of is a failure, unless `down` is expected. */
export async function openPage(browser, server, { path = '/locks', roles, args, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.complaints = [];
  page.on('pageerror', (error) => page.complaints.push(String(error)));
  page.on('console', (message) => {
    // A server that is down or refuses makes the browser log each failed call; that is not the page's fault.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) {
      page.complaints.push(message.text());
    }
  });
  if (slow > 1) {
    const session = await context.newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate: slow });
  }
  await page.goto(server.url + path);
  return page;
}

/** The barriers that axe finds: contrast, names, roles. */
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
export async function findings(page) {
  const { violations } = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ['violations'] })`);
  return violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(' | ')}`);
}

/** How far the page could be scrolled sideways. */
export const sideways = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

/** The names in the list, in order. */
export const names = (page) => page.locator('.row .cell.name').evaluateAll((cells) => cells.map((c) => c.textContent));

export const rowOf = (page, name) => page.locator('.row', { has: page.locator(`.cell.name >> text="${name}"`) });

export const state = (page) => page.locator('.state [role=status]').textContent();

/** Waits until the element with this id has the focus, and says which has it if it never comes. */
export async function focusOn(page, id) {
  let at;
  await until(`the focus is on ${id}`, async () => {
    at = await page.evaluate(() => document.activeElement?.id || document.activeElement?.outerHTML.slice(0, 80));
    return at === id;
  }).catch((error) => {
    throw new Error(`${error.message}; it is on ${at}`);
  });
}

/**
 * Writes down every moment at which the focus is nowhere, from now on: after each change of the document, once the
 * page has had its say (a task, as a key would be).
 */
export const watchFocus = (page) =>
  page.evaluate(() => {
    window.lostFocus = [];
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      if (document.activeElement === document.body) window.lostFocus.push(document.body.innerText.slice(0, 200));
    };
    new MutationObserver(() => port2.postMessage(0)).observe(document.body, { childList: true, subtree: true });
  });

export const lostFocus = (page) => page.evaluate(() => window.lostFocus);

export const shot = (page, name) => page.screenshot({ path: join(artifacts, `${name}.png`) });
