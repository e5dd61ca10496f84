// The page /locks in a real browser, against a real server.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import { findings, focusOn, lostFocus, names, openBrowser, openPage, rowOf, Server, shot, sideways, state, until, watchFocus } from './harness.mjs';

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser?.close());

/** A test with a server and a page of its own, both ended whatever happens. */
function onPage(title, options, body) {
  test(title, async () => {
    const server = await Server.start(options);
    let page;
    try {
      page = await openPage(browser, server, options);
      await body({ server, page });
      assert.deepEqual(page.complaints, [], 'the browser has nothing to complain of');
    } catch (error) {
      if (page !== undefined) await shot(page, `failed-${title.replaceAll(/\W+/g, '-')}`).catch(() => {});
      throw error;
    } finally {
      await page?.context().close();
      await server.stop();
    }
  });
}

const live = (page) => until('the page is live', async () => (await state(page)) === 'Live');
const shows = (page, expected) =>
  until(`the list shows ${expected}`, async () => JSON.stringify(await names(page)) === JSON.stringify(expected)).catch(
    async (error) => {
      throw new Error(`${error.message}; it shows ${JSON.stringify(await names(page))}`);
    },
  );
const seconds = (text) => {
  const found = /^(?:(\d+) min ?)?(?:([\d.]+) s)?$/.exec(text);
  assert.ok(found, `a remaining time, not ${JSON.stringify(text)}`);
  return Number(found[1] ?? 0) * 60 + Number(found[2] ?? 0);
};

// Goal: a newcomer is told how to take a first lock, and sees it without reloading; it goes when it is released.
// Method: the very command the page shows for curl is run by a shell.
onPage('the command of the empty page takes a lock that shows at once', {}, async ({ server, page }) => {
  await live(page);
  await page.getByRole('heading', { name: 'Nothing is held' }).waitFor();
  await shot(page, 'empty');
  const command = await page.locator('.copyable code').first().textContent();
  const lease = JSON.parse(execFileSync('sh', ['-c', command.replace('curl ', 'curl -sS ')], { encoding: 'utf8' }));
  await shows(page, ['my-first-lock']);
  const row = rowOf(page, 'my-first-lock');
  assert.equal(await row.locator('.holder').textContent(), 'curl');
  assert.equal(await row.locator('.token').textContent(), lease.token);
  await server.release(lease);
  await page.getByRole('heading', { name: 'Nothing is held' }).waitFor();
});

// Goal: remaining time goes down by itself at the pace of time, and up again with a renewal, without a reload.
onPage('the countdown goes down and follows a renewal', {}, async ({ server, page }) => {
  const lease = await server.acquire('job', { ttl_ms: 120_000 });
  const cell = rowOf(page, 'job').locator('.remaining');
  await until('a countdown', async () => /s$/.test(await cell.textContent()));
  // Text and moment are read in one go. A busy page writes late, so that it may agree a little later, not never.
  const look = async () => {
    const [text, at] = await cell.evaluate((element) => [element.textContent, performance.now()]);
    return { left: seconds(text), at: at / 1000 };
  };
  const from = await look();
  await until('it has gone down by three seconds and more, at the pace of time', async () => {
    const to = await look();
    return to.at - from.at > 3 && Math.abs(from.left - to.left - (to.at - from.at)) <= 1.1;
  });
  await server.renew(lease, 3_000_000);
  await until('the renewal shows', async () => seconds(await cell.textContent()) > 2000);
});

// Goal: the wall clock has no part in it.
// Method: the browser's Date jumps by a day; the countdown does not.
onPage('a wall clock that jumps moves no countdown', {}, async ({ server, page }) => {
  await server.acquire('job', { ttl_ms: 3_000_000 });
  const cell = rowOf(page, 'job').locator('.remaining');
  await until('a countdown', async () => /s$/.test(await cell.textContent()));
  await page.evaluate(() => {
    const { now } = Date;
    Date.now = () => now() + 86_400_000;
  });
  const before = await cell.textContent();
  await until('it goes on', async () => (await cell.textContent()) !== before);
  const left = seconds(await cell.textContent());
  assert.ok(left > 2000 && left <= 3000, `${left} s left`);
});

// Goal: waiters show in order of arrival, in the list and in the detail, and move up when the holder leaves.
onPage('waiters are shown in order and move up', {}, async ({ server, page }) => {
  const lease = await server.acquire('seat-14', { holder: 'ada' });
  const line = ['bob', 'cleo', 'dan'];
  for (const holder of line) await server.queue('seat-14', holder);
  const row = rowOf(page, 'seat-14');
  await until('the queue shows', async () => (await row.locator('.queue-len').textContent()).startsWith('3'));
  await until('in order', async () => JSON.stringify(await row.locator('.queue-names .text').allTextContents()) === JSON.stringify(line));
  await row.click();
  const queue = page.locator('.detail .queue .text');
  await until('the detail shows the line', async () => (await queue.count()) === 3);
  assert.deepEqual(await queue.allTextContents(), line);
  await shot(page, 'detail');
  await server.release(lease);
  await until('the first in line holds it', async () => (await row.locator('.holder').textContent()) === line[0]);
  await until('the others moved up', async () => JSON.stringify(await queue.allTextContents()) === JSON.stringify(line.slice(1)));
});

// Goal: one field finds by any part of what is loaded, at once, and by the beginning of a name on the server.
// Method: more resources than are loaded at first; a name far beyond them is found by its beginning only.
onPage('search finds what is loaded and what is not', {}, async ({ server, page }) => {
  const batch = (from, to) =>
    Promise.all(Array.from({ length: to - from }, (_, i) => server.acquire(`n-${String(from + i).padStart(4, '0')}`)));
  for (let from = 0; from < 600; from += 50) await batch(from, from + 50);
  await server.acquire('zebra', { holder: 'worker-77' });
  await page.reload();
  await live(page);
  await until('the first page', async () => (await page.locator('.summary').textContent()).includes('more as you scroll'));
  const search = page.getByRole('searchbox');
  await search.fill('-0042');
  await shows(page, ['n-0042']);
  await search.fill('zeb');
  await shows(page, ['zebra']);
  await until('the server was asked', async () => /^1 begin with it/.test(await page.locator('.summary').textContent()));
  await search.fill('no such thing');
  await page.getByText('Nothing that is held matches').waitFor();
  await search.fill('');
  // All of it can be reached by scrolling, and then holders are found wherever they are.
  await page.locator('#list').focus();
  await until('the end of the list', async () => {
    await page.keyboard.press('End');
    return (await names(page)).includes('zebra');
  });
  assert.ok((await page.locator('.row').count()) < 80, 'only rows in view are in the document');
  await search.fill('WORKER-77');
  await shows(page, ['zebra']);
});

// Goal: everything can be done with the keyboard alone, up to a revoke with a reason.
// Method: no click anywhere; a server with keys, as its admin.
onPage('by keyboard alone: key, search, open, revoke', { roles: ['admin'] }, async ({ server, page }) => {
  await server.acquire('invoice-run', { holder: 'cron@host-1', ttl_ms: 600_000 });
  await server.acquire('nightly', { holder: 'cron@host-2', ttl_ms: 600_000 });
  await page.getByRole('heading', { name: 'This server asks for a key' }).waitFor();
  await focusOn(page, 'key');
  await watchFocus(page);
  await shot(page, 'gate');
  await page.keyboard.type('wrong-key');
  await page.keyboard.press('Enter');
  await page.getByText('does not accept this key').waitFor();
  await focusOn(page, 'key');
  await page.keyboard.press('Control+a');
  await page.keyboard.type(server.keys.admin);
  await page.keyboard.press('Enter');
  await shows(page, ['invoice-run', 'nightly']);
  await page.keyboard.press('/');
  await page.keyboard.type('night');
  await shows(page, ['nightly']);
  await page.keyboard.press('Escape');
  await shows(page, ['invoice-run', 'nightly']);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('j');
  await page.keyboard.press('k');
  await page.keyboard.press('j');
  await until('the mark is on it', async () => (await page.locator('.row.active .name').textContent()) === 'nightly');
  await shot(page, 'keyboard');
  await page.keyboard.press('Enter');
  await focusOn(page, 'detail-title');
  // Offered once the server has said which role the key has.
  await page.getByRole('button', { name: 'Revoke…' }).waitFor();
  await page.keyboard.press('r');
  await page.getByRole('dialog').getByText('cron@host-2').waitFor();
  await shot(page, 'revoke');
  await page.keyboard.press('Enter');
  await page.getByText('Please give a reason.').waitFor();
  await page.keyboard.type('host-2 is being replaced');
  await page.keyboard.press('Enter');
  await page.getByText('Revoked 1 lease.').waitFor();
  await focusOn(page, 'detail-title');
  await shows(page, ['invoice-run']);
  await page.keyboard.press('Escape');
  await focusOn(page, 'list');
  const ending = page.locator('.endings li').first();
  await ending.getByText('host-2 is being replaced').waitFor();
  assert.equal(await ending.locator('.kind').textContent(), 'revoked');
  // The key is nowhere but in this tab's own store.
  assert.ok(!page.url().includes(server.keys.admin));
  assert.equal(await page.evaluate((key) => JSON.stringify({ ...localStorage }).includes(key) || document.cookie, server.keys.admin), '');
  await page.getByRole('button', { name: 'Forget key' }).press('Enter');
  await page.getByRole('heading', { name: 'This server asks for a key' }).waitFor();
  await focusOn(page, 'key');
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.deepEqual(await lostFocus(page), [], 'the focus was never nowhere');
});

// Goal: whatever goes while it has the focus, the focus stays in the page, at every moment.
// Method: dialogs are left in each way, and the button that has the focus goes with the lease, before the dialog it
// opened closes, after it, and without any dialog.
onPage('the focus is never lost', {}, async ({ server, page }) => {
  const open = async (name) => {
    await rowOf(page, name).waitFor();
    await page.locator('#list').focus();
    await page.keyboard.press('Home');
    await page.keyboard.press('Enter');
    await focusOn(page, 'detail-title');
  };
  const button = page.getByRole('button', { name: 'Revoke…' });
  const free = () => page.getByText('Nobody holds it').waitFor();
  await live(page);
  let lease = await server.acquire('seat', { ttl_ms: 600_000 });
  await rowOf(page, 'seat').waitFor();
  await open('seat');
  await watchFocus(page);
  for (const leave of ['Keep it', 'Escape']) {
    await button.press('Enter');
    await focusOn(page, 'reason');
    if (leave === 'Escape') await page.keyboard.press('Escape');
    else await page.getByRole('button', { name: leave }).press('Enter');
    await until('back on the button', () => button.evaluate((element) => element === document.activeElement));
  }
  // The lease ends while the button has the focus.
  await server.release(lease);
  await free();
  await focusOn(page, 'detail-title');
  // It ends while the question is open, which is then left.
  lease = await server.acquire('seat', { ttl_ms: 600_000 });
  await button.press('Enter');
  await focusOn(page, 'reason');
  await server.release(lease);
  await page.getByRole('dialog').getByText('Nobody holds it at the moment').waitFor();
  await page.keyboard.press('Escape');
  await focusOn(page, 'detail-title');
  // It ends by the revoke itself; the news of it may come before the answer or after it.
  for (let i = 0; i < 5; i++) {
    await server.acquire('seat', { ttl_ms: 600_000 });
    await button.press('Enter');
    await focusOn(page, 'reason');
    await page.keyboard.type('enough');
    await page.keyboard.press('Enter');
    await page.getByText('Revoked 1 lease.').waitFor();
    await free();
    await focusOn(page, 'detail-title');
  }
  await page.keyboard.press('?');
  await page.getByRole('dialog').getByRole('button', { name: 'Close' }).press('Enter');
  await focusOn(page, 'detail-title');
  await page.keyboard.press('Escape');
  await until('the list or what stands for it has the focus', () =>
    page.evaluate(() => ['list', 'main'].includes(document.activeElement?.id)),
  );
  assert.deepEqual(await lostFocus(page), [], 'the focus was never nowhere');
});

// Goal: keys that come faster than the page is drawn all count.
// Method: ten keys within one task of the page.
onPage('no key is lost, however fast they come', {}, async ({ server, page }) => {
  for (let i = 0; i < 12; i++) await server.acquire(`k-${String(i).padStart(2, '0')}`);
  await until('the list', async () => (await page.locator('.summary').textContent()).startsWith('12 '));
  await page.getByRole('searchbox').fill('k-1');
  await shows(page, ['k-10', 'k-11']);
  await page.evaluate(() => {
    const type = (key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    type('Escape');
    type('ArrowDown');
  });
  await until('all of them', async () => (await page.locator('.row').count()) === 12);
  await page.evaluate(() => {
    const type = (key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    type('Home');
    for (let i = 0; i < 10; i++) type('j');
    type('k');
    type('Enter');
  });
  await until('the tenth is open', async () => (await page.locator('#detail-title').textContent()) === 'k-09');
});

// Goal: a revoke that did not come about, or may not have, is never taken for done.
// Method: the server dies while the question is open; then it is back, and the same dialog does it.
onPage('a revoke that fails says so and can be tried again', {}, async ({ server, page }) => {
  await server.acquire('nightly', { holder: 'cron', ttl_ms: 600_000 });
  await shows(page, ['nightly']);
  await rowOf(page, 'nightly').click();
  await page.getByRole('button', { name: 'Revoke…' }).click();
  await page.getByRole('textbox').fill('ä'.repeat(200));
  await page.getByRole('button', { name: 'Revoke now' }).click();
  await page.getByRole('alert').getByText('at most 256 bytes').waitFor();
  await server.kill();
  await page.getByRole('textbox').fill('gone wrong');
  await page.getByRole('button', { name: 'Revoke now' }).click();
  await page.getByRole('alert').getByText('does not answer').waitFor();
  await server.up();
  await live(page);
  await page.getByRole('button', { name: 'Revoke now' }).click();
  await page.getByText('Revoked 1 lease.').waitFor();
});

// Goal: shared and permits show as what they are, with all their holders in the detail.
onPage('modes, several holders, and a link to what one sees', {}, async ({ server, page }) => {
  const take = (holder, want) => server.ask('POST', '/v1/leases', { resources: [want], ttl_ms: 60_000, holder });
  for (const holder of ['r1', 'r2', 'r3']) await take(holder, { name: 'prices', mode: 'shared' });
  for (const holder of ['p1', 'p2']) await take(holder, { name: 'slots', mode: 'permits', permits: 2, capacity: 5 });
  await shows(page, ['prices', 'slots']);
  const mode = (name) => rowOf(page, name).locator('.mode-cell').textContent();
  await until('the modes', async () => (await mode('prices')) === 'shared' && (await mode('slots')) === '4 of 5 permits');
  await until('all holders', async () => (await rowOf(page, 'prices').locator('.holder').textContent()) === 'r1+2');
  await page.getByRole('searchbox').fill('p');
  await rowOf(page, 'prices').click();
  await page.locator('.detail .people').waitFor();
  // The address now leads here, also after a reload.
  await page.reload();
  await until('three holders', async () => (await page.locator('.detail .person').count()) === 3);
  assert.deepEqual(await page.locator('.detail .person').allTextContents(), ['r1', 'r2', 'r3']);
  assert.equal(await page.getByRole('searchbox').inputValue(), 'p');
});

// Goal: whoever looks at a crowd, or is about to revoke it, is told of all of them, not only of those who are listed.
// Method: more holders of one resource than the server shows of it (1,000), and than it lists in a row (100).
onPage('a crowd of holders is counted whole', {}, async ({ server, page }) => {
  const crowd = 1030;
  // The page has enough to do with what it shows: it need not see them come one by one.
  const address = page.url();
  await page.goto('about:blank');
  for (let made = 0; made < crowd; made += 103) {
    const some = Array.from({ length: 103 }, (_, n) => ({ holder: `reader-${made + n}` }));
    await Promise.all(some.map((one) => server.acquire({ name: 'report', mode: 'shared' }, one)));
  }
  await page.goto(address);
  const row = rowOf(page, 'report');
  await until('the row counts all', async () => (await row.locator('.more').textContent()) === '+1,029');
  await row.click();
  await page.locator('.facts').getByText('1,030 holders').waitFor();
  await page.getByText('and 930 more hold it').waitFor();
  await page.getByRole('button', { name: 'Show 100 more holders' }).click();
  await page.getByText('and 830 more hold it').waitFor();
  assert.equal(await page.locator('.people li').count(), 200);
  await page.getByRole('button', { name: 'Revoke…' }).click();
  await page.getByText('All 1,030 leases on it end at once').waitFor();
  await page.getByRole('textbox').fill('the report is wrong');
  await page.getByRole('button', { name: 'Revoke now' }).click();
  await page.getByText('Revoked 1,030 leases.').waitFor();
  await page.getByText('Nobody holds it').waitFor();
});

// Goal: whoever may only read sees everything and is offered no revoke, by button or by key.
onPage('a key that may only read offers no revoke', { roles: ['admin', 'read'] }, async ({ server, page }) => {
  await server.acquire('nightly', { holder: 'cron' });
  await page.locator('#key').fill(server.keys.read);
  await page.locator('#key').press('Enter');
  await shows(page, ['nightly']);
  await rowOf(page, 'nightly').click();
  await page.locator('.detail .people').waitFor();
  await until('the role is known', async () => (await page.locator('.roles').textContent()) === 'read');
  await page.keyboard.press('r');
  await page.waitForTimeout(300);
  assert.equal(await page.getByRole('dialog').count(), 0);
  assert.equal(await page.getByRole('button', { name: /Revoke/ }).count(), 0);
  // A key that is taken back ends the show at once: nothing stays in sight, and the key is not kept.
  await server.revokeKey('read');
  await page.getByText('does not accept this key').waitFor();
  assert.equal(await page.locator('.row, .detail').count(), 0);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

// Goal: a server that is gone is seen as gone, old data as old; when it is back the page is live by itself and
// nothing is missing of what happened meanwhile.
onPage('a killed server is noticed, and its return too', {}, async ({ server, page }) => {
  await server.acquire('kept', { ttl_ms: 600_000 });
  const gone = await server.acquire('gone', { ttl_ms: 600_000 });
  await shows(page, ['gone', 'kept']);
  await server.kill();
  await until('reconnecting', async () => (await state(page)) === 'Reconnecting');
  await page.getByText('The connection is lost').waitFor();
  assert.deepEqual(await names(page), ['gone', 'kept'], 'what was known is still shown');
  assert.equal(await page.locator('.grid.stale').count(), 1);
  await shot(page, 'stale');
  await server.up();
  // Before the page is back: these events it never hears.
  await server.release(gone);
  await server.acquire('fresh', { ttl_ms: 600_000 });
  await live(page);
  await shows(page, ['fresh', 'kept']);
  assert.equal(await page.locator('.grid.stale').count(), 0);
});

// Goal: strangers' text is text: no markup, no hidden or turning characters, however long.
onPage('names with markup, controls and great length are text', { viewport: { width: 900, height: 700 } }, async ({ server, page }) => {
  const markup = '<img src=x onerror="document.title=1"><b>bold</b>';
  const long = 'x'.repeat(500);
  await server.acquire(markup, { holder: '<script>document.title=2</script>' });
  await server.acquire('pay\u202Efdp.exe', { holder: 'zero\u200Bwidth' });
  await server.acquire(long, { holder: 'y'.repeat(250) });
  await until('three rows', async () => (await page.locator('.row').count()) === 3);
  assert.deepEqual((await names(page)).sort(), [markup, long, 'payU+202Efdp.exe'].sort());
  assert.equal(await page.locator('.row img, .row b, .row script').count(), 0);
  assert.equal(await page.title(), 'Locks · Leasehold');
  assert.equal(await sideways(page), 0);
  await rowOf(page, long).click();
  await page.locator('.detail .people').waitFor();
  assert.equal(await sideways(page), 0);
  assert.ok(await page.locator('.side').evaluate((side) => side.scrollWidth <= side.clientWidth));
  await shot(page, 'strangers');
});

// Goal: names that mean something in an address can be opened too.
onPage('names with slashes, percent signs and dots open', {}, async ({ server, page }) => {
  const odd = ['..', 'a/b?c#d', 'per%2Fcent', '座席 14'];
  for (const name of odd) await server.acquire(name, { holder: 'odd' });
  await shows(page, odd);
  for (const name of odd) {
    await rowOf(page, name).click();
    await until(`${name} is open`, async () => (await page.locator('#detail-title').textContent()) === name);
    await page.locator('.detail .people').waitFor();
  }
});

// Goal: a small window shows all of it without scrolling sideways.
for (const width of [320, 360]) {
  onPage(`a window ${width} wide needs no sideways scrolling`, { viewport: { width, height: 640 } }, async ({ server, page }) => {
    await live(page);
    assert.equal(await sideways(page), 0, 'empty');
    await shot(page, `small-${width}-empty`);
    for (let i = 0; i < 12; i++) {
      await server.acquire(`warehouse/berlin/aisle-${i}/bay-with-a-rather-long-name`, { holder: `picker-${i}@host-${i}.example` });
    }
    await server.ask('POST', '/v1/leases', { resources: ['slots'].map((name) => ({ name, mode: 'permits', permits: 2, capacity: 4 })), ttl_ms: 90_000, holder: 'render' });
    await until('rows', async () => (await page.locator('.row .remaining').getByText('min').or(page.locator('.row .remaining').getByText(' s')).count()) > 5);
    assert.equal(await sideways(page), 0, 'list');
    const list = await page.locator('#list').boundingBox();
    assert.ok(list.height > 250, `the list keeps ${list.height} px`);
    await shot(page, `small-${width}`);
    await page.locator('.row').first().click();
    await page.locator('.detail .people').waitFor();
    assert.equal(await sideways(page), 0, 'detail');
    await shot(page, `small-${width}-detail`);
    await page.getByRole('button', { name: 'Close' }).click();
    await page.getByRole('button', { name: 'Recent' }).click();
    await page.getByRole('heading', { name: 'Recent lapses' }).waitFor();
    assert.equal(await sideways(page), 0, 'recent');
  });
}

// Goal: nobody is kept out by contrast, missing names or roles, in light and in dark, in any state of the page.
for (const colorScheme of ['light', 'dark']) {
  onPage(`no barriers, ${colorScheme}`, { colorScheme }, async ({ server, page }) => {
    await live(page);
    await page.getByRole('heading', { name: 'Nothing is held' }).waitFor();
    assert.deepEqual(await findings(page), [], 'empty');
    await server.acquire('lapses-soon', { ttl_ms: 1, holder: 'short' });
    await server.acquire('a-seat', { holder: 'ada' });
    await server.queue('a-seat', 'bob');
    for (let i = 0; i < 30; i++) await server.acquire(`order/${1000 + i * 37}`, { holder: `worker-${i % 5}@host`, ttl_ms: 20_000 + i * 90_000 });
    for (const holder of ['r1', 'r2', 'r3']) {
      await server.ask('POST', '/v1/leases', { resources: [{ name: 'a-price-list', mode: 'shared' }], ttl_ms: 90_000, holder });
    }
    await page.locator('.kind-lapsed').waitFor();
    await rowOf(page, 'a-price-list').locator('.more').waitFor();
    await until('bob waits', async () => (await rowOf(page, 'a-seat').locator('.queue-len').count()) === 1);
    assert.deepEqual(await findings(page), [], 'list');
    await shot(page, `list-${colorScheme}`);
    await rowOf(page, 'a-seat').click();
    await page.locator('.detail .people').waitFor();
    assert.deepEqual(await findings(page), [], 'detail');
    await shot(page, `detail-${colorScheme}`);
    await page.keyboard.press('Escape');
    await page.keyboard.press('?');
    await page.getByRole('dialog').waitFor();
    assert.deepEqual(await findings(page), [], 'help');
    await shot(page, `help-${colorScheme}`);
    await page.keyboard.press('Escape');
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const [red] = ground.match(/\d+/g).map(Number);
    assert.ok(colorScheme === 'dark' ? red < 60 : red > 200, `the ground is ${ground}`);
    await server.kill();
    await until('reconnecting', async () => (await state(page)) === 'Reconnecting');
    assert.deepEqual(await findings(page), [], 'stale');
  });
}

// Goal: what is being read stays where it is when rows come and go above it; rows out of view are not in the document.
onPage('rows that come above do not move what is read', { viewport: { width: 1280, height: 500 } }, async ({ server, page }) => {
  for (let i = 0; i < 60; i++) await server.acquire(`m-${String(i).padStart(2, '0')}`);
  await until('the list', async () => (await page.locator('.summary').textContent()).startsWith('60 '));
  await page.locator('#list').evaluate((list) => (list.scrollTop = 34 * 30 + 10));
  const row = rowOf(page, 'm-35');
  const was = (await row.boundingBox()).y;
  for (let i = 0; i < 5; i++) await server.acquire(`a-${i}`);
  await until('they came', async () => (await page.locator('.summary').textContent()).startsWith('65 '));
  // Looked at over some time: it must not move away later either.
  for (let i = 0; i < 5; i++) {
    assert.equal((await row.boundingBox()).y, was);
    await page.waitForTimeout(50);
  }
  // Nor does a click: the row under the mouse is the one that opens.
  await row.click();
  await until('it is open', async () => (await page.locator('#detail-title').textContent()) === 'm-35');
  assert.equal((await row.boundingBox()).y, was);
});

// Goal: what happens while the page is being opened is not missed, at whichever moment.
// Method: the same start many times, with a grant at another moment of it each time.
onPage('nothing is missed while the page opens', {}, async ({ server, page }) => {
  for (let i = 0; i < 12; i++) {
    const lease = await Promise.all([
      page.reload({ waitUntil: 'commit' }),
      new Promise((at) => setTimeout(at, i * 25)).then(() => server.acquire(`at-${i}`)),
    ]);
    await shows(page, [`at-${i}`]);
    await server.release(lease[1]);
  }
});
