// redlock 4 over ioredis 6, as they come from npm: one server, and a majority of three.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import Redlock from 'redlock';
import { site, waitUntil } from './servers.mjs';

const once = { retryCount: 0 };
const patient = { retryCount: 2000, retryDelay: 5, retryJitter: 5 };

/** The token of the only holder, and what else LEASE GET shows. */
async function lease(client, name) {
  const seen = await client.call('LEASE', 'GET', name);
  if (!seen) return null;
  const map = (flat) => (Array.isArray(flat) ? Object.fromEntries(flat.flatMap((key, at) => (at % 2 ? [] : [[key, flat[at + 1]]]))) : flat);
  const shown = map(seen);
  return { ...shown, holders: shown.holders.map(map) };
}

for (const protocol of [2, 3]) {
  // Goal: lock, refuse, extend, unlock, and errors as with Redis, over one server.
  test(`one server, RESP${protocol}`, async (t) => {
    const { servers, connect } = await site(t, 1);
    const client = connect(servers[0], { protocol });
    const redlock = new Redlock([client], once);
    const other = new Redlock([connect(servers[0], { protocol })], once);

    const lock = await redlock.lock('seat', 60_000);
    assert.equal(await client.get('seat'), lock.value);
    await assert.rejects(other.lock('seat', 60_000), { name: 'LockError' });
    await lock.extend(90_000);
    const left = await client.pttl('seat');
    assert.ok(left > 60_000 && left <= 90_000, `${left}`);
    assert.ok((await lease(client, 'seat')).holders[0].token > 0);
    await lock.unlock();
    assert.equal(await client.exists('seat'), 0);
    await assert.rejects(lock.unlock(), { name: 'LockError', message: /Unable to fully release/ });

    const next = await other.lock('seat', 60_000);
    await assert.rejects(redlock.unlock(lock), { name: 'LockError' });
    assert.equal(await client.get('seat'), next.value);
    await next.unlock();
  });
}

// Goal: an array of resources is all or nothing, one lease with one token, and extended and unlocked as a whole.
test('resource arrays', async (t) => {
  const { servers, connect } = await site(t, 1);
  const client = connect(servers[0]);
  const redlock = new Redlock([client], once);
  const both = await redlock.lock(['seat-1', 'seat-2', 'seat-3'], 60_000);
  assert.equal(await client.exists('seat-1', 'seat-2', 'seat-3'), 3);
  const tokens = await Promise.all(['seat-1', 'seat-2', 'seat-3'].map(async (name) => (await lease(client, name)).holders[0].token));
  assert.equal(new Set(tokens).size, 1);
  await assert.rejects(redlock.lock(['seat-4', 'seat-2'], 60_000), { name: 'LockError' });
  assert.equal(await client.exists('seat-4'), 0);
  await both.extend(90_000);
  for (const name of ['seat-1', 'seat-2', 'seat-3']) assert.ok((await client.pttl(name)) > 60_000);
  // Somebody deletes one of them: the rest is released, and the unlock is an error, as with Redis.
  assert.equal(await client.del('seat-2'), 1);
  await assert.rejects(both.unlock(), { name: 'LockError', message: /Unable to fully release/ });
  assert.equal(await client.exists('seat-1', 'seat-2', 'seat-3'), 0);
  const again = await redlock.lock(['seat-1', 'seat-2', 'seat-3'], 60_000);
  assert.ok((await lease(client, 'seat-1')).holders[0].token > tokens[0]);
  await again.unlock();
  assert.equal(await client.exists('seat-1', 'seat-2', 'seat-3'), 0);
});

// Goal: a lock that lapsed is not released a second time, nor extended, and does not hurt its successor.
test('an expired lock', async (t) => {
  const { servers, connect } = await site(t, 1);
  const client = connect(servers[0]);
  const redlock = new Redlock([client], once);
  const began = Date.now();
  const lock = await redlock.lock('seat', 300);
  const next = await new Redlock([client], patient).lock('seat', 60_000);
  assert.ok(Date.now() - began >= 299, 'not early');
  await assert.rejects(lock.extend(1000), { name: 'LockError', message: /already expired/ });
  await assert.rejects(lock.unlock(), { name: 'LockError' });
  // Also when the client believes that it still holds the lock.
  lock.expiration = Date.now() + 60_000;
  await assert.rejects(lock.extend(1000), { name: 'LockError' });
  assert.equal(await client.get('seat'), next.value);
  await next.unlock();
});

// Goal: several clients with retries never hold the lock together.
test('contenders', async (t) => {
  const { servers, connect } = await site(t, 1);
  let inside = 0;
  let rounds = 0;
  await Promise.all(
    [1, 2, 3, 4].map(async () => {
      const redlock = new Redlock([connect(servers[0])], patient);
      for (let round = 0; round < 25; round += 1) {
        const lock = await redlock.lock('contended', 60_000);
        inside += 1;
        assert.equal(inside, 1);
        await sleep(1);
        inside -= 1;
        rounds += 1;
        await lock.unlock();
      }
    }),
  );
  assert.equal(rounds, 100);
});

// Goal: a majority over three of our servers goes on while one of them is dead, and not while two are. A server that
// comes back has kept its part of the lock.
test('a majority of three, one killed in the middle', async (t) => {
  const { servers, connect } = await site(t, 3);
  // A command to a dead server fails at once instead of waiting for it.
  const options = { maxRetriesPerRequest: 0, enableOfflineQueue: false, retryStrategy: () => 20 };
  const clients = servers.map((server) => connect(server, options));
  await Promise.all(clients.map((client) => waitUntil('connected', () => client.status === 'ready')));
  const errors = [];
  const redlock = new Redlock(clients, once);
  redlock.on('clientError', (error) => errors.push(error));

  const lock = await redlock.lock(['seat-1', 'seat-2'], 60_000);
  for (const client of clients) assert.equal(await client.get('seat-1'), lock.value);
  assert.equal(errors.length, 0);

  await servers[1].kill();
  await waitUntil('the client notices', () => clients[1].status !== 'ready');
  await lock.extend(90_000);
  await assert.rejects(redlock.lock('seat-2', 60_000), { name: 'LockError' });
  const meanwhile = await redlock.lock('seat-3', 60_000);
  await meanwhile.unlock();
  assert.ok(errors.length > 0, 'the dead server was asked');

  await servers[1].start();
  await waitUntil('the client reconnects', () => clients[1].status === 'ready');
  // Durable: it has the lock with the value, though it was killed without a goodbye.
  assert.equal(await clients[1].get('seat-1'), lock.value);
  assert.equal(await clients[1].exists('seat-3'), 0);
  const before = errors.length;
  await lock.unlock();
  assert.equal(errors.length, before);
  for (const client of clients) assert.equal(await client.exists('seat-1', 'seat-2'), 0);

  await Promise.all([servers[0].kill(), servers[2].kill()]);
  await waitUntil('the clients notice', () => clients[0].status !== 'ready' && clients[2].status !== 'ready');
  await assert.rejects(redlock.lock('seat-4', 60_000), { name: 'LockError' });
  // The minority gave back what it had granted.
  await waitUntil('the survivor is free', async () => (await clients[1].exists('seat-4')) === 0);
});
