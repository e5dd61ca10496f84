// Elections, schedules and queues on the page /locks, in a real browser. The leases, the keys, the stream and the page are a
// real server's; the answers of the other routes come from `recipes.mjs`.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { findings, focusOn, lostFocus, openBrowser, openPage, Server, shot, sideways, state, until, watchFocus } from './harness.mjs';
import { instant, run, StandIn } from './recipes.mjs';

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser?.close());

/** A test with a server, the recipes before it and a page of its own, all ended whatever happens. */
function onPage(title, { before = () => {}, ...options }, body) {
  test(title, async () => {
    const server = await Server.start(options);
    const world = await StandIn.before(server);
    let page;
    try {
      await before(world);
      page = await openPage(browser, world, options);
      await body({ server, world, page });
      assert.deepEqual(page.complaints, [], 'the browser has nothing to complain of');
    } catch (error) {
      if (page !== undefined) await shot(page, `failed-${title.replaceAll(/\W+/g, '-')}`).catch(() => {});
      throw error;
    } finally {
      await page?.context().close();
      await world.stop();
      await server.stop();
    }
  });
}

const tabs = (page) => page.getByRole('tab').allTextContents();
const showTabs = (page, expected) =>
  until(`the tabs are ${expected}`, async () => JSON.stringify(await tabs(page)) === JSON.stringify(expected)).catch(
    async (error) => {
      throw new Error(`${error.message}; they are ${JSON.stringify(await tabs(page))}`);
    },
  );
const all = ['Leases', 'Elections', 'Schedules', 'Queues'];
const openTab = (page, name) => page.getByRole('tab', { name }).click();
const opener = (page, name) => page.locator(`.opener[data-name="${name}"]`);
const lineOf = (page, name) => page.locator('.line', { has: opener(page, name) });
const figure = (page, queue, name) => lineOf(page, queue).locator(`.cell.${name}`);
const letters = (page) => page.locator('.letter-id').allTextContents();
const showLetters = (page, jobs) =>
  until(`the dead letters are ${jobs}`, async () => JSON.stringify(await letters(page)) === JSON.stringify(jobs.map((job) => `job ${job}`)));
const dialog = (page) => page.getByRole('dialog');

/** Enough of everything: each state, long names, big figures. */
async function plenty(world) {
  const month = (state) => Array.from({ length: 30 }, (_, i) => run(3_000_000 + i * 86_400_000, state(i)));
  const states = ['ok', 'failed', 'ok', 'lost', 'missed', 'ok', 'skipped'];
  await world.election('scheduler', { value: '10.0.0.7:9001' });
  await world.candidate('scheduler', 'host-2');
  await world.election(`billing/${'a-long-name-'.repeat(12)}`, { value: 'worker@host.example '.repeat(10) });
  world.schedule('nightly', { runs: month((i) => states[i % states.length]) });
  world.schedule('cleanup', { runs: [run(1000, 'running'), ...month(() => 'ok')] });
  world.schedule(`new-${'and-long-'.repeat(20)}`, { spec: '30 2 * * 1-5', next_in_ms: null });
  world.queue('mail', { ready: 9000, delayed: 210, taken: 16, retried: 37, oldest_ms: 252_000 });
  world.letter('mail', { body: { to: 'ada', items: [1, 2] }, error: 'no route to host', key: 'k'.repeat(300) });
  world.letter('mail', { body: 'x'.repeat(5000), error: 'y'.repeat(3000) });
  for (let i = 0; i < 8; i++) world.letter('mail', { body: { i } });
  const hot_keys = [{ key: 'customer-7', jobs: 10_000, oldest_ms: 9_000_000 }, { key: 'c'.repeat(400), jobs: 1, oldest_ms: 10 }];
  world.queue('orders', { by_key: true, ready: 10_000, taken: 8, oldest_ms: 9_000_000, hot_keys });
  world.queue(`thumbnails-${'x'.repeat(117)}`, { paused: true, by_key: true, sleepers: 3 });
}

// Goal: there is a tab for what the server has, and none for what it lacks; one that comes later is found.
// Method: a server without these routes (the one of today, unless it has them), one without a store, and one that gets it.
onPage('tabs are for what the server has', { before: (world) => world.refuse('/v1/', 404, 'invalid', 'no such path') }, async ({ world, page }) => {
  await until('it was asked for all', async () => new Set(world.asked).size === 3);
  await until('live', async () => (await state(page)) === 'Live');
  await showTabs(page, ['Leases']);
  world.allow();
  for (const path of ['/v1/queues', '/v1/schedules']) world.refuse(path, 503, 'unavailable', 'This server has no store. Start it with --store.');
  await page.reload();
  await showTabs(page, ['Leases', 'Elections']);
  // Who comes by an address is told why there is nothing.
  await page.goto(`${world.url}/locks#t=queues`);
  await page.reload();
  await page.getByText('This server has no store. Start it with --store.').waitFor();
  await shot(page, 'recipes-no-store');
  assert.deepEqual(await findings(page), []);
  world.allow();
  await page.getByRole('heading', { name: 'There is no queue yet' }).waitFor();
  await page.reload();
  await showTabs(page, all);
  for (const [tab, title] of [['Elections', 'Nobody leads'], ['Schedules', 'There is no schedule yet'], ['Queues', 'There is no queue yet']]) {
    await openTab(page, tab);
    await page.getByRole('heading', { name: title }).waitFor();
    assert.deepEqual(await findings(page), [], title);
    await shot(page, `recipes-empty-${tab}`);
  }
});

// Goal: the tabs and what is in them can be used by keyboard alone: one stop for Tab, arrows between tabs, arrows in the
// list, Enter opens, Esc closes and leads back; the focus is never nowhere.
onPage('by keyboard alone', { before: plenty }, async ({ page }) => {
  await showTabs(page, all);
  const selected = () => page.locator('[role=tab][aria-selected=true]');
  const at = (name) => focusOn(page, `tab-${name}`);
  assert.deepEqual(await page.getByRole('tab').evaluateAll((found) => found.map((tab) => tab.tabIndex)), [0, -1, -1, -1]);
  await page.locator('#tab-leases').focus();
  await watchFocus(page);
  for (const [key, name] of [['ArrowRight', 'elections'], ['ArrowRight', 'schedules'], ['End', 'queues'], ['ArrowRight', 'leases'], ['ArrowLeft', 'queues'], ['Home', 'leases']]) {
    await page.keyboard.press(key);
    await at(name);
    assert.equal(await selected().getAttribute('id'), `tab-${name}`);
    assert.equal(await page.locator('#panel').getAttribute('aria-labelledby'), `tab-${name}`);
  }
  // The figures: and Tab leads from the tabs into the list, and back.
  await page.keyboard.press('4');
  await until('queues', async () => (await selected().textContent()) === 'Queues');
  await opener(page, 'mail').waitFor();
  await page.locator('#tab-queues').focus();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.dataset.name), 'mail');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('k');
  await page.keyboard.press('j');
  assert.equal(await page.evaluate(() => document.activeElement.dataset.name), 'orders');
  await page.keyboard.press('Enter');
  await focusOn(page, 'detail-title');
  await page.getByText('customer-7').waitFor();
  await page.keyboard.press('Escape');
  await until('back on its line', () => page.evaluate(() => document.activeElement.dataset.name === 'orders'));
  await page.keyboard.press('3');
  await opener(page, 'nightly').waitFor();
  await page.keyboard.press('?');
  await dialog(page).getByText('the tab at that place').waitFor();
  assert.deepEqual(await findings(page), [], 'help');
  await page.keyboard.press('Escape');
  await page.keyboard.press('2');
  await opener(page, 'scheduler').focus();
  await page.keyboard.press('Enter');
  // An election is a lease: there it can be revoked.
  await until('its lease is open', async () => (await page.locator('#detail-title').textContent()) === 'election/scheduler');
  await focusOn(page, 'detail-title');
  // Esc for the question and Esc for the queue, as fast as they can come.
  await page.keyboard.press('4');
  await opener(page, 'mail').press('Enter');
  await page.getByRole('button', { name: 'Drop job 2' }).press('Enter');
  await dialog(page).waitFor();
  await Promise.all([page.keyboard.press('Escape'), page.keyboard.press('Escape')]);
  await until('back on its line', () => page.evaluate(() => document.activeElement.dataset.name === 'mail'));
  assert.deepEqual(await lostFocus(page), [], 'the focus was never nowhere');
});

// Goal: a leader shows with its value, token, time and line; who comes to lead shows by the stream, without waiting for
// the next poll.
// Method: the page's long timers never fire.
const noPolling = () => {
  const { setTimeout } = window;
  window.setTimeout = (run, ms, ...more) => (ms >= 4000 ? 0 : setTimeout(run, ms, ...more));
};
onPage('elections', {}, async ({ server, world, page }) => {
  await page.addInitScript(noPolling);
  await page.reload();
  const first = await world.election('scheduler', { value: '10.0.0.7:9001' });
  await world.candidate('scheduler', '10.0.0.8:9001');
  await openTab(page, 'Elections');
  const line = lineOf(page, 'scheduler');
  const cell = (name) => line.locator(`.cell.${name}`);
  await until('the line is counted', async () => (await cell('figure').textContent()) === '1');
  assert.equal(await cell('value').textContent(), '10.0.0.7:9001');
  assert.equal(await cell('token').textContent(), first.token);
  await until('times', async () => /ago|just now/.test(await cell('since').textContent()) && /min/.test(await cell('remaining').textContent()));
  await world.election('another', { value: 'host-9' });
  await opener(page, 'another').waitFor();
  await server.release(first);
  await until('the next leads', async () => (await cell('value').textContent()) === '10.0.0.8:9001');
});

// Goal: a schedule tells its spec, its last run, its next tick in words with the instant in the title, and its last thirty
// runs, each by a sign and a text; the runs open with the end of their output as text.
onPage('schedules', {}, async ({ world, page }) => {
  const states = ['failed', 'ok', 'lost', 'missed', 'skipped', 'running'];
  const tail = 'line one\n<b onclick="alert(1)">bold</b>\n\u001b[31mred\u001b[0m\u0007';
  const runs = Array.from({ length: 40 }, (_, i) => run(60_000 + i * 900_000, states[i % 6], { late_ms: 95_000, machine: 'host-17', tail: i === 0 ? tail : null }));
  const next = instant(290_000);
  world.schedule('invoices', { spec: '*/15 * * * *', next_in_ms: 290_000, runs });
  world.schedule('overdue', { next_in_ms: -250_000, runs: [run(9_000_000, 'missed', { ticks: 12 })] });
  await page.reload();
  await openTab(page, 'Schedules');
  const line = lineOf(page, 'invoices');
  await until('the next tick', async () => (await line.locator('.next').textContent()) === 'in 4 min');
  assert.match(await line.locator('.next time').getAttribute('title'), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
  assert.equal((await line.locator('.next time').getAttribute('title')).slice(0, 15), next.slice(0, 15).replace('T', ' '));
  assert.equal(await line.locator('.spec').textContent(), '*/15 * * * *');
  for (const said of ['failed', 'host-17', '1 min 35 s late']) assert.ok((await line.locator('.last').textContent()).includes(said), said);
  const marks = line.locator('.mark');
  assert.equal(await marks.count(), 30);
  const signs = await marks.evaluateAll((found) => found.map((mark) => mark.querySelector('[aria-hidden]').textContent));
  assert.equal(new Set(signs).size, 6, 'each state has a sign of its own');
  const texts = await marks.evaluateAll((found) => found.map((mark) => mark.querySelector('.hidden').textContent));
  assert.match(texts.at(-1), /^failed: .* UTC, on host-17, 1 min 35 s late, exit code 2$/, 'the newest is the last');
  const colour = (state) => line.locator(`.mark.run-${state}`).first().evaluate((mark) => getComputedStyle(mark).backgroundColor);
  for (const state of ['lost', 'missed']) assert.notEqual(await colour(state), await colour('ok'), `${state} stands out`);
  const overdue = lineOf(page, 'overdue');
  assert.equal(await overdue.locator('.next').textContent(), 'due 4 min ago');
  assert.ok((await overdue.locator('.last').textContent()).includes('missed × 12'));
  await opener(page, 'invoices').press('Enter');
  await focusOn(page, 'detail-title');
  await until('all its runs', async () => (await page.locator('.runs li').count()) === 40);
  assert.equal(await page.locator('.runs .block').textContent(), 'line one\n<b onclick="alert(1)">bold</b>\nredU+0007');
  assert.equal(await page.locator('.runs b').count(), 0);
  await shot(page, 'recipes-runs');
});

// Goal: the wall clock of the operator's computer has no part in when the next tick comes.
onPage('a wrong wall clock moves no tick', {}, async ({ world, page }) => {
  world.schedule('nightly', { next_in_ms: 290_000 });
  await page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 86_400_000;
  });
  await page.reload();
  await openTab(page, 'Schedules');
  await until('the next tick', async () => (await lineOf(page, 'nightly').locator('.next').textContent()) === 'in 4 min');
});

// Goal: the figures of a queue follow the server, and move nothing when they change.
onPage('figures of queues follow, and nothing jumps', {}, async ({ world, page }) => {
  world.queue('mail', { ready: 3, sleepers: 2 });
  world.queue('orders', { ready: 1 });
  await page.reload();
  await openTab(page, 'Queues');
  await until('the figures', async () => (await figure(page, 'mail', 'ready').textContent()) === '3');
  assert.deepEqual(await lineOf(page, 'mail').locator('.cell').allTextContents(), ['mail', '3', '0', '0', '0', '0', '–', '2']);
  const places = () => page.locator('.line .cell').evaluateAll((cells) => cells.map((cell) => JSON.stringify(cell.getBoundingClientRect())));
  const before = await places();
  world.queue('mail', { ready: 9_000, delayed: 1_000, taken: 4321, retried: 777, oldest_ms: 3_599_000, sleepers: 1234, paused: true });
  await until('they follow', async () => (await figure(page, 'mail', 'ready').textContent()) === '9,000+');
  assert.deepEqual(await places(), before);
  await lineOf(page, 'mail').getByText('paused').waitFor();
});

// Goal: what is not shown is not asked for: leases are not while another tab is shown, and are up to date on return.
onPage('leases are not asked for from another tab', { before: (world) => world.queue('mail') }, async ({ server, page }) => {
  await server.acquire('before');
  await page.locator('.row').getByText('before').waitFor();
  await openTab(page, 'Queues');
  await opener(page, 'mail').waitFor();
  await page.waitForTimeout(500);
  const asked = [];
  page.on('request', (request) => request.url().includes('/v1/resources') && asked.push(request.url()));
  const lease = await server.acquire('meanwhile');
  await server.renew(lease, 3_000_000);
  await page.waitForTimeout(5000);
  assert.deepEqual(asked, []);
  await openTab(page, 'Leases');
  await until('it is known', async () => /^4\d min|^50 min/.test(await page.locator('.row', { hasText: 'meanwhile' }).locator('.remaining').textContent()));
});

// Goal: nothing is asked for while nobody looks, and at once when somebody looks again.
onPage('a hidden page asks for nothing', {}, async ({ world, page }) => {
  world.queue('mail', { ready: 3 });
  await page.reload();
  await openTab(page, 'Queues');
  await opener(page, 'mail').waitFor();
  const look = (hidden) =>
    page.evaluate((value) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
  await look(true);
  // What was on its way may still come.
  await page.waitForTimeout(500);
  const asked = world.asked.length;
  await page.waitForTimeout(6000);
  assert.equal(world.asked.length, asked);
  world.queue('mail', { ready: 4 });
  await look(false);
  await until('it is asked again', async () => (await figure(page, 'mail', 'ready').textContent()) === '4');
});

// Goal: a dead letter shows as text, exact to the digit and cut at a length, with its error, attempts and age.
onPage('dead letters are text', {}, async ({ world, page }) => {
  const markup = '<img src=x onerror="document.title=1">';
  world.letter('mail', { text: `{"order":9007199254740993,"rate":1.0,"to":${JSON.stringify(markup)}}`, error: `${markup}\nsecond line`, attempt: 20, key: markup, age_ms: 7_300_000, dead_for_ms: 300_000 });
  world.letter('mail', { body: 'x'.repeat(5000), attempt: 1 });
  await page.reload();
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  await showLetters(page, ['1', '2']);
  const first = page.locator('.letters li').first();
  assert.equal(await first.locator('.cut-body .block').textContent(), `{\n  "order": 9007199254740993,\n  "rate": 1.0,\n  "to": ${JSON.stringify(markup)}\n}`);
  assert.equal(await first.locator('.cut-error .block').textContent(), `${markup}\nsecond line`);
  const facts = await first.locator('.run-facts > span').allTextContents();
  assert.deepEqual(facts.map((text) => text.replace(/ \d+ s$/, '')), ['20 attempts', 'dead for 5 min', 'pushed 2 h ago', `key ${markup}`]);
  await page.getByText('… and 3,002 more characters').waitFor();
  assert.equal(await page.locator('.letters img, .letters b').count(), 0);
  assert.equal(await page.title(), 'Locks · Leasehold');
});

// Goal: retry and drop work for one, for those that are chosen and for all that are shown, after a question; nothing happens
// without a yes; and exactly what was shown and chosen is acted on.
onPage('retry and drop: one, some, all', { roles: ['admin'] }, async ({ server, world, page }) => {
  for (let i = 1; i <= 7; i++) world.letter('mail', { body: { i } });
  await page.locator('#key').fill(server.keys.admin);
  await page.locator('#key').press('Enter');
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  await showLetters(page, ['1', '2', '3', '4', '5', '6', '7']);
  await watchFocus(page);
  const changes = () => world.asked.filter((asked) => asked.startsWith('POST'));
  const press = (name) => page.getByRole('button', { name, exact: true }).click();
  const yes = (name, note) => async () => {
    await dialog(page).getByRole('button', { name }).click();
    await page.locator('.note').getByText(note, { exact: true }).waitFor();
  };
  // No is no.
  for (const leave of ['Leave it as it is', 'Escape']) {
    await press('Drop job 1');
    await dialog(page).getByText('Nothing brings it back').waitFor();
    if (leave === 'Escape') await page.keyboard.press('Escape');
    else await press(leave);
    await until('the question is gone', async () => (await dialog(page).count()) === 0);
  }
  assert.deepEqual(changes(), []);
  assert.equal(await page.getByRole('button', { name: 'Drop what is chosen' }).getAttribute('aria-disabled'), 'true');
  await page.getByRole('button', { name: 'Drop what is chosen' }).click({ force: true });
  assert.equal(await dialog(page).count(), 0, 'nothing is chosen');
  // One.
  await press('Retry job 2');
  await dialog(page).getByText('Job 2.').waitFor();
  await yes('Retry now', 'Retried 1 job.')();
  await showLetters(page, ['1', '3', '4', '5', '6', '7']);
  await until('it waits again', async () => (await figure(page, 'mail', 'ready').textContent()) === '1');
  // Some; another operator is faster with one of them.
  await page.getByRole('checkbox', { name: 'Choose job 3' }).check();
  await page.getByRole('checkbox', { name: 'Choose job 5' }).check();
  await page.locator('.chosen').getByText('2 chosen').waitFor();
  await press('Drop what is chosen');
  await dialog(page).getByText('Jobs 3, 5.').waitFor();
  await shot(page, 'recipes-drop');
  world.forget('mail', '5');
  await yes('Drop now', 'Dropped 1 of 2 jobs: one was no longer dead.')();
  await showLetters(page, ['1', '4', '6', '7']);
  // All that are shown, and none that came since.
  await page.getByRole('checkbox', { name: 'All 4 shown' }).check();
  await page.locator('.chosen').getByText('4 chosen').waitFor();
  const late = world.letter('mail', { body: 'came late' });
  await showLetters(page, ['1', '4', '6', '7', late]);
  await page.locator('.chosen').getByText('4 chosen').waitFor();
  assert.equal(await page.getByRole('checkbox', { name: 'All 5 shown' }).evaluate((box) => box.indeterminate), true);
  await press('Retry what is chosen');
  await yes('Retry now', 'Retried 4 jobs.')();
  await showLetters(page, [late]);
  assert.deepEqual(changes(), ['POST /v1/queues/mail/retry', 'POST /v1/queues/mail/drop', 'POST /v1/queues/mail/retry']);
  const { queues } = await world.ask('/v1/queues', server.keys.admin);
  assert.deepEqual(queues.map(({ ready, dead }) => [ready, dead]), [[5, 1]]);
  assert.deepEqual(await lostFocus(page), [], 'the focus was never nowhere');
});

// Goal: a queue is paused and resumed, after a question.
onPage('pause and resume', { before: (world) => world.queue('mail', { ready: 1 }) }, async ({ world, page }) => {
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  const line = lineOf(page, 'mail');
  for (const [button, yes, note, shown] of [['Pause…', 'Pause now', 'Paused.', 1], ['Resume…', 'Resume now', 'Resumed.', 0]]) {
    await page.getByRole('button', { name: button }).click();
    await dialog(page).getByRole('button', { name: yes }).click();
    await page.locator('.note').getByText(note).waitFor();
    await until(note, async () => (await line.locator('.tag-paused').count()) === shown);
  }
  assert.equal(world.asked.filter((asked) => asked === 'POST /v1/queues/mail/pause').length, 2);
});

// Goal: what the server refuses is not taken for done: its sentence shows, and the same question can be asked again. No answer
// is called unknown.
onPage('refusals show the sentence of the server', { before: (world) => world.letter('mail') }, async ({ server, world, page }) => {
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  await page.getByRole('button', { name: 'Drop job 1' }).click();
  const alert = dialog(page).getByRole('alert');
  const now = dialog(page).getByRole('button', { name: 'Drop now' });
  world.refuse('/v1/queues/mail/drop', 403, 'forbidden', 'This key is for queue/other.');
  await now.click();
  await alert.getByText('This key is for queue/other.').waitFor();
  await shot(page, 'recipes-refused');
  world.allow();
  await server.kill();
  await now.click();
  await alert.getByText('does not answer').waitFor();
  await server.up();
  await until('live', async () => (await state(page)) === 'Live');
  await now.click();
  await page.locator('.note').getByText('Dropped 1 job.').waitFor();
});

// Goal: whoever may only read sees everything and is offered no change; a key that is taken back ends the show.
onPage('a key that may only read offers no change', { roles: ['admin', 'read'], before: (world) => world.letter('mail', { error: 'why' }) }, async ({ server, page }) => {
  await page.locator('#key').fill(server.keys.read);
  await page.locator('#key').press('Enter');
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  await page.locator('.cut-error').getByText('why').waitFor();
  await page.getByText('want the role admin').waitFor();
  assert.equal(await page.getByRole('button', { name: /Retry|Drop|Pause/ }).count(), 0);
  assert.equal(await page.getByRole('checkbox').count(), 0);
  await server.revokeKey('read');
  await page.getByText('does not accept this key').waitFor();
  assert.equal(await page.locator('.line, .letters, [role=tab]').count(), 0);
});

// Goal: what was known stays in sight as old, with the reason, when the store or the server fails; and is fresh again after it.
onPage('a store that fails is told, and its return too', { before: (world) => world.queue('mail', { ready: 3 }) }, async ({ server, world, page }) => {
  await openTab(page, 'Queues');
  await opener(page, 'mail').click();
  world.refuse('/v1/queues', 503, 'unavailable', 'The store does not answer.');
  await page.locator('.banner').getByText('The store does not answer.').waitFor();
  assert.equal(await figure(page, 'mail', 'ready').textContent(), '3');
  assert.equal(await page.locator('.board.stale').count(), 1);
  await page.getByRole('button', { name: 'Pause…' }).click({ force: true });
  assert.equal(await dialog(page).count(), 0, 'nothing is done on old knowledge');
  world.allow();
  world.queue('mail', { ready: 4 });
  await until('fresh again', async () => (await page.locator('.board.stale, .banner').count()) === 0);
  assert.equal(await figure(page, 'mail', 'ready').textContent(), '4');
  await server.kill();
  await page.locator('.banner').getByText('The connection is lost').waitFor();
  await server.up();
  await until('live again', async () => (await page.locator('.board.stale, .banner').count()) === 0);
});

// Goal: the address leads back to the tab and to what is open, also for names that mean something in an address.
onPage('a link leads back', { before: (world) => world.letter('a/b?c#d %') }, async ({ page }) => {
  await openTab(page, 'Queues');
  await page.locator('.opener').click();
  await showLetters(page, ['1']);
  await page.reload();
  await showLetters(page, ['1']);
  assert.equal(await page.locator('#detail-title').textContent(), 'a/b?c#d %');
  await page.keyboard.press('Escape');
  await until('the address forgets it', async () => new URL(page.url()).hash === '#t=queues');
});

// Goal: a small window shows every tab, and what is open, without scrolling sideways; what is cut has its whole text in the title.
for (const width of [320, 360]) {
  onPage(`tabs in a window ${width} wide`, { viewport: { width, height: 640 }, before: plenty }, async ({ page }) => {
    await showTabs(page, all);
    const fits = async (what) => {
      assert.equal(await sideways(page), 0, what);
      const wide = await page.locator('.board, .side, .views').evaluateAll((found) => found.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.className));
      assert.deepEqual(wide, [], what);
    };
    for (const [tab, name] of [['Elections', null], ['Schedules', 'nightly'], ['Queues', 'mail'], ['Queues', 'orders']]) {
      await openTab(page, tab);
      await page.locator('.opener').first().waitFor();
      await fits(tab);
      const unseen = await page.locator('.line:not(.board-head) .cell').evaluateAll((cells) => cells.filter((cell) => cell.clientWidth < 30).map((cell) => cell.className));
      assert.deepEqual(unseen, [], `${tab}: every figure is in sight`);
      await shot(page, `recipes-${width}-${tab}`);
      if (name === null) continue;
      await opener(page, name).click();
      await page.locator('.runs li, .letters li, .hot-keys li').first().waitFor();
      await fits(`${tab}, ${name}`);
      await shot(page, `recipes-${width}-${name}`);
      await page.getByRole('button', { name: 'Close' }).click();
    }
    const long = page.locator('.opener', { hasText: 'thumbnails' });
    const cut = await long.evaluate((button) => [button.scrollWidth > button.clientWidth, button.querySelector('.text').title]);
    assert.deepEqual(cut, [true, `thumbnails-${'x'.repeat(117)}`]);
  });
}

// Goal: nobody is kept out by contrast, missing names or roles, in light and in dark, in any state of the tabs.
for (const colorScheme of ['light', 'dark']) {
  onPage(`no barriers in the tabs, ${colorScheme}`, { colorScheme, before: plenty }, async ({ world, page }) => {
    for (const [tab, name] of [['Elections', null], ['Schedules', 'nightly'], ['Queues', 'orders'], ['Queues', 'mail']]) {
      await openTab(page, tab);
      await page.locator('.opener').first().waitFor();
      assert.deepEqual(await findings(page), [], tab);
      await shot(page, `recipes-${colorScheme}-${tab}`);
      if (name === null) continue;
      await opener(page, name).click();
      await page.locator('.runs li, .letters li, .hot-keys li').first().waitFor();
      assert.deepEqual(await findings(page), [], `${tab}, ${name}`);
      await shot(page, `recipes-${colorScheme}-${name}`);
    }
    await page.getByRole('checkbox', { name: 'Choose job 2' }).check();
    await page.getByRole('button', { name: 'Drop what is chosen' }).click();
    assert.deepEqual(await findings(page), [], 'question');
    await page.keyboard.press('Escape');
    world.refuse('/v1/queues', 503, 'unavailable', 'The store does not answer.');
    await page.locator('.banner').waitFor();
    assert.deepEqual(await findings(page), [], 'old');
  });
}
