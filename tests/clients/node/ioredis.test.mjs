// ioredis 6 itself, and redis-semaphore's Mutex over it.

import assert from 'node:assert/strict';
import test from 'node:test';
import { Mutex, RedlockMutex, Semaphore, LostLockError, TimeoutError } from 'redis-semaphore';
import { setTimeout as sleep } from 'node:timers/promises';
import { site, waitUntil } from './servers.mjs';

for (const protocol of [2, 3]) {
  // Goal: the ready check reads INFO, and a client is ready only after it.
  test(`ready check and pipelines, RESP${protocol}`, async (t) => {
    const { servers, connect } = await site(t, 1);
    const client = connect(servers[0], { protocol, lazyConnect: true, enableReadyCheck: true, connectionName: 'worker-7' });
    await client.connect();
    assert.equal(client.status, 'ready');
    assert.match(String(client.serverInfo?.redis_version ?? (await client.info())), /7\.0\.0/);
    assert.equal(await client.set('seat', 'ada', 'PX', 60_000, 'NX'), 'OK');
    assert.equal(await client.set('seat', 'bob', 'EX', 60, 'NX'), null);
    assert.match(JSON.stringify(await client.call('LEASE', 'GET', 'seat')), /worker-7 /);
    const answers = await client.pipeline().get('seat').set('seat', 'eve').ttl('seat').del('seat').exists('seat').exec();
    assert.deepEqual(answers.map(([error]) => error?.message.split(' ').slice(0, 4).join(' ') ?? null), [null, 'INVALID SET without NX', null, null, null]);
    assert.deepEqual([answers[0][1], answers[3][1], answers[4][1]], ['ada', 1, 0]);
    // A transaction is refused with all that is in it.
    await assert.rejects(client.multi().set('seat', 'ada', 'PX', 60_000, 'NX').exec(), /EXECABORT|MULTI is not supported/);
    assert.equal(await client.exists('seat'), 0);
    const [id, token, left] = await client.call('LEASE', 'ACQUIRE', 60_000, 'RESOURCES', 'seat');
    assert.ok(token > 0 && left > 30_000);
    assert.equal(await client.call('LEASE', 'RELEASE', id), 1);
    assert.equal(await client.quit(), 'OK');
  });
}

// Goal: after kill -9 and a restart the client reconnects by itself, and finds its lock with its time.
test('reconnect after a restart', async (t) => {
  const { servers, connect } = await site(t, 1);
  const client = connect(servers[0], { retryStrategy: () => 20, maxRetriesPerRequest: null });
  await client.set('seat', 'ada', 'PX', 600_000, 'NX');
  // From before the question: its answer may be late.
  const asked = process.hrtime.bigint();
  const before = await client.pttl('seat');
  await servers[0].kill();
  await waitUntil('the client notices', () => client.status !== 'ready');
  // Asked while nobody is there: answered after the restart.
  const pending = client.get('seat');
  await sleep(300);
  await servers[0].start();
  assert.equal(await pending, 'ada');
  const left = await client.pttl('seat');
  const elapsed = Number(process.hrtime.bigint() - asked) / 1e6;
  // Not a whole ttl once more, and not less than what was left.
  assert.ok(left <= before - 300 && left >= before - elapsed - 2, `${before} ms, ${elapsed} ms later ${left} ms`);
  assert.equal(await client.set('seat', 'bob', 'PX', 1000, 'NX'), null);
});

// Goal: redis-semaphore's Mutex: acquire, wait, refresh by itself, release, and a lost lock is noticed.
test('redis-semaphore Mutex', async (t) => {
  const { servers, connect } = await site(t, 1);
  const client = connect(servers[0]);
  const options = { lockTimeout: 3000, refreshInterval: 100, acquireTimeout: 200, retryInterval: 10 };
  const ada = new Mutex(client, 'seat', options);
  await ada.acquire();
  assert.equal(await client.get('mutex:seat'), ada.identifier);
  await assert.rejects(new Mutex(client, 'seat', options).acquire(), TimeoutError);
  // Well past its own timeout: it was refreshed.
  await sleep(3500);
  assert.equal(await client.get('mutex:seat'), ada.identifier);
  assert.ok(ada.isAcquired);
  await ada.release();
  assert.equal(await client.exists('mutex:seat'), 0);

  let lost;
  const bob = new Mutex(client, 'seat', { ...options, onLockLost: (error) => { lost = error; } });
  await bob.acquire();
  assert.equal(await client.call('LEASE', 'REVOKE', 'mutex:seat', 'REASON', 'maintenance'), 1);
  await waitUntil('bob notices', () => lost);
  assert.ok(lost instanceof LostLockError);
  // Releasing what is gone is quiet, as with Redis, and does not touch the next holder.
  await client.set('mutex:seat', 'eve', 'PX', 60_000, 'NX');
  await bob.release();
  assert.equal(await client.get('mutex:seat'), 'eve');
});

// Goal: its RedlockMutex over three servers.
test('redis-semaphore RedlockMutex', async (t) => {
  const { servers, connect } = await site(t, 3);
  const clients = servers.map((server) => connect(server));
  const options = { lockTimeout: 60_000, acquireTimeout: 100, retryInterval: 10 };
  const ada = new RedlockMutex(clients, 'seat', options);
  await ada.acquire();
  await assert.rejects(new RedlockMutex(clients, 'seat', options).acquire(), TimeoutError);
  await ada.release();
  for (const client of clients) assert.equal(await client.exists('mutex:seat'), 0);
});

// Goal: its Semaphore counts in a sorted set by a script of its own: refused in a sentence, nothing half-done.
test('redis-semaphore Semaphore is refused', async (t) => {
  const { servers, connect } = await site(t, 1);
  const client = connect(servers[0]);
  await assert.rejects(new Semaphore(client, 'seat', 2).acquire(), /INVALID this server runs no scripts/);
  assert.equal(await client.exists('semaphore:seat'), 0);
});
