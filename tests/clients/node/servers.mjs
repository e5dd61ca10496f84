// Real servers: `leasehold serve` on free ports, each with a directory of its own. Every one that was started is
// killed at the end of its test, also when that failed.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, openSync, closeSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Redis from 'ioredis';

const PATIENCE_MS = 60_000;

export async function waitUntil(what, check) {
  const end = Date.now() + PATIENCE_MS;
  while (Date.now() < end) {
    const found = await check();
    if (found) return found;
    await sleep(10);
  }
  assert.fail(`waited in vain: ${what}`);
}

export class Server {
  port = 0;
  http = 0;
  #home = mkdtempSync(join(tmpdir(), 'leasehold-clients-'));
  #child;

  /** Starts it, or starts it again: on the same directory and the same ports. */
  async start() {
    const binary = process.env.LEASEHOLD_BIN;
    assert.ok(binary, 'LEASEHOLD_BIN must name the binary to test: run scripts/test-clients');
    const log = join(this.#home, 'log');
    const out = openSync(log, 'w');
    const child = spawn(
      binary,
      ['serve', '--data', join(this.#home, 'data'), '--http', `127.0.0.1:${this.http}`, '--resp', `127.0.0.1:${this.port}`],
      { stdio: ['ignore', out, out] },
    );
    closeSync(out);
    this.#child = child;
    const said = await waitUntil('the server says where it listens', () => {
      const text = readFileSync(log, 'utf8');
      assert.equal(child.exitCode, null, `the server ended: ${text}`);
      return text.includes('acquire seat-16') && text;
    });
    this.port = Number(said.match(/^ {2}resp {2}127\.0\.0\.1:(\d+)/m)[1]);
    this.http = Number(said.match(/^ {2}http {2}http:\/\/127\.0\.0\.1:(\d+)/m)[1]);
    return this;
  }

  /** kill -9. */
  async kill() {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await gone;
  }

  async close() {
    await this.kill();
    rmSync(this.#home, { recursive: true, force: true });
  }
}

/** Servers and clients of one test, gone when it ends. */
export async function site(t, count) {
  const servers = [];
  const clients = [];
  t.after(async () => {
    clients.forEach((client) => client.disconnect());
    await Promise.all(servers.map((server) => server.close()));
  });
  for (let number = 0; number < count; number += 1) {
    servers.push(new Server());
    await servers[number].start();
  }
  const connect = (server, options = {}) => {
    const client = new Redis({ port: server.port, host: '127.0.0.1', ...options });
    // A server that was killed on purpose is no news.
    client.on('error', () => {});
    clients.push(client);
    return client;
  };
  return { servers, connect };
}
