// The buyers' page in a real browser, against a real server with a demo's test provider.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { findings, focusOn, lostFocus, openPage, Server, shot, sideways, state, until, watchFocus } from './harness.mjs';
import { clock, onEvent, opened, rival, seat, seatState, shows, theBrowser } from './office.mjs';

before(opened);
after(() => theBrowser()?.close());

const heading = (page, name) => page.getByRole('heading', { name, exact: true }).waitFor();
const press = (page, name) => page.getByRole('button', { name, exact: true }).click();
/** The hold of this browser, as the page keeps it, and as the server shows it. */
const kept = (page, event) => page.evaluate((of) => JSON.parse(localStorage.getItem(`leasehold.hold.${of}`)), event);
const holdOf = async (server, page, event) => {
  const { hold_id, hold_key } = await kept(page, event);
  return server.ask('GET', `/v1/holds/${hold_id}`, undefined, undefined, { 'Leasehold-Hold-Key': hold_key });
};
const reference = (page) => page.locator('.reference bdi').textContent();
const giveUp = 'Cancel the payment and go back';

const live = (page) => until('the page is live', async () => (await state(page)) === 'Live');
const pick = async (page, ...ids) => {
  for (const id of ids) {
    await seat(page, id).click();
    await shows(page, id, 'picked by you');
  }
};
const hold = async (page, ...ids) => {
  await pick(page, ...ids);
  await press(page, `Hold ${ids.length} seat${ids.length === 1 ? '' : 's'}`);
  await heading(page, 'Held for you');
};

// Goal: from click to sale, with a large countdown between; another window sees each step without a reload.
onEvent('two seats are picked, held, paid and sold', {}, async ({ server, page, event }) => {
  const other = await openPage(theBrowser(), server, { path: `/#event=${event}` });
  try {
    await live(page);
    assert.equal(await seat(page, 'C-2').getAttribute('aria-label'), 'Row C, seat 2, 45.00, available');
    await shot(page, 'buy-map');
    await hold(page, 'C-2', 'C-3');
    const left = await clock(page);
    assert.ok(left > 200 && left <= 300, `${left} s left`);
    await shows(other, 'C-2', 'held by somebody else');
    await shows(page, 'C-2', 'held for you');
    await page.locator('.total').getByText('90.00 EUR').waitFor();
    await shot(page, 'buy-held');
    await press(page, 'Pay 90.00 EUR');
    await heading(page, 'Pay for your seats');
    await shows(other, 'C-2', 'being paid by somebody else');
    await shot(page, 'buy-paying');
    await press(page, 'Approve');
    await heading(page, 'Bought');
    await page.getByText('Your seats are bought.').waitFor();
    await shows(other, 'C-3', 'sold');
    await shot(page, 'buy-bought');
    const { ok } = await server.ask('GET', `/v1/events/${event}/invariants`);
    assert.equal(ok, true);
  } finally {
    await other.context().close();
  }
});

// Goal: all of it by keyboard alone, and the focus is somewhere at every moment.
onEvent('by keyboard alone: find a seat, hold, more time, pay', {}, async ({ page }) => {
  await live(page);
  await seat(page, 'A-1').focus();
  await watchFocus(page);
  for (const key of ['ArrowDown', 'ArrowRight', 'ArrowRight', 'End', 'ArrowLeft', 'ArrowDown', 'ArrowUp']) await page.keyboard.press(key);
  await focusOn(page, 'seat-B-7');
  await page.keyboard.press('Space');
  await shows(page, 'B-7', 'picked by you');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await shows(page, 'B-8', 'picked by you');
  const tabTo = async (name) => {
    for (let i = 0; i < 40; i++) {
      const at = await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent);
      if (at === name) return;
      await page.keyboard.press('Tab');
    }
    throw new Error(`Tab does not lead to ${name}`);
  };
  await tabTo('Hold 2 seats');
  await page.keyboard.press('Enter');
  await heading(page, 'Held for you');
  await focusOn(page, 'basket-title');
  const before = await clock(page);
  await until('time has passed', async () => (await clock(page)) < before - 1);
  const low = await clock(page);
  await tabTo('More time');
  await page.keyboard.press('Enter');
  await until('there is more time', async () => (await clock(page)) > low);
  await tabTo('Pay 90.00 EUR');
  await page.keyboard.press('Enter');
  await heading(page, 'Pay for your seats');
  await tabTo(giveUp);
  await page.keyboard.press('Enter');
  await heading(page, 'Held for you');
  await tabTo('Pay 90.00 EUR');
  await page.keyboard.press('Enter');
  await heading(page, 'Pay for your seats');
  await tabTo('Approve');
  await page.keyboard.press('Enter');
  await heading(page, 'Bought');
  await focusOn(page, 'basket-title');
  assert.deepEqual(await lostFocus(page), [], 'the focus was never nowhere');
});

// Goal: the list can do what the map can.
onEvent('the list is equal to the map', {}, async ({ page }) => {
  await live(page);
  await press(page, 'List');
  assert.equal(await seat(page, 'D-1').getAttribute('aria-label'), 'Row D, seat 1, 30.00, available');
  await hold(page, 'D-1', 'D-2');
  await page.getByLabel('Only seats I can have').check();
  await shows(page, 'D-1', 'held for you');
  await shot(page, 'buy-list');
  // Giving one back, and taking another, in one step.
  await seat(page, 'D-1').click();
  await seat(page, 'D-4').click();
  await press(page, 'Add 1 seat and give back 1 seat');
  await shows(page, 'D-4', 'held for you');
  await shows(page, 'D-1', 'available');
  await press(page, 'Give back all');
  await page.getByText('Your seats are given back.').waitFor();
  await shows(page, 'D-4', 'available');
});

// Goal: whoever comes too late is told which seat is lost and why, loses nothing else, and is offered another block.
// Method: the page is kept from hearing that a rival took one of the seats.
onEvent('a conflict names the seat and offers others', {}, async ({ server, page, event }) => {
  await page.route('**/stream', (route) => route.abort());
  await page.reload();
  await pick(page, 'B-4', 'B-5');
  await rival(server, event, ['B-5']);
  await press(page, 'Hold 2 seats');
  const alert = page.getByRole('alert');
  await alert.getByText('Nothing was held.').waitFor();
  await alert.getByText('row B, seat 5 is held by somebody else').waitFor();
  await shot(page, 'buy-conflict');
  assert.deepEqual(await findings(page), [], 'conflict');
  assert.equal(await seatState(server, event, 'B-4'), 'free');
  await press(page, 'Hold these instead');
  await heading(page, 'Held for you');
  assert.equal(await page.locator('.things li').count(), 2);
});

// Goal: a seat that goes while it is picked is named at once, and the others stay picked.
onEvent('a picked seat that is taken is named', {}, async ({ server, page, event }) => {
  await live(page);
  await pick(page, 'B-4', 'B-5');
  await rival(server, event, ['B-5']);
  await page.getByText('Row B, seat 5: just taken by somebody else.').waitFor();
  await shows(page, 'B-5', 'held by somebody else');
  await press(page, 'Hold 1 seat');
  await heading(page, 'Held for you');
});

// Goal: reload, Back and a second tab are the same buyer with one hold and one clock; what one tab does the other sees.
onEvent('reload, Back and a second tab keep one hold and one clock', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1', 'A-2');
  await page.reload();
  await heading(page, 'Held for you');
  await page.goto(`${server.url}/docs`);
  await page.goBack();
  await heading(page, 'Held for you');
  const second = await page.context().newPage();
  await second.goto(page.url());
  await heading(second, 'Held for you');
  // Read at the same moment as nearly as can be, until they agree: a busy page writes late.
  await until('one clock', async () => {
    const [one, two] = await Promise.all([clock(page), clock(second)]);
    return Math.abs(one - two) <= 1;
  });
  await press(second, 'Give back all');
  await until('the first tab knows', async () => (await page.getByRole('timer').count()) === 0);
  assert.equal(await seatState(server, event, 'A-1'), 'free');
  await hold(page, 'A-3');
  await heading(second, 'Held for you');
  const secrets = await page.evaluate(() => JSON.parse(localStorage.getItem(Object.keys(localStorage).find((item) => item.startsWith('leasehold.hold.')))).hold_key);
  assert.ok(secrets.length > 10 && !page.url().includes(secrets));
});

// Goal: an answer that never came is called unknown, and asking again holds once.
// Method: the server is killed as the request leaves; then it is back.
onEvent('a lost answer is unknown until it is known', {}, async ({ server, page, event }) => {
  await live(page);
  await pick(page, 'A-1', 'A-2');
  // The request reaches the server, its answer never reaches the page.
  await page.route('**/holds', async (route) => {
    await route.fetch();
    await route.abort();
  });
  await press(page, 'Hold 2 seats');
  await page.getByText('Not known:').waitFor();
  assert.equal(await seatState(server, event, 'A-1'), 'held');
  await shot(page, 'buy-unknown');
  await page.unroute('**/holds');
  await page.reload();
  await heading(page, 'Held for you');
  const { totals } = await server.ask('GET', `/v1/events/${event}/availability`);
  assert.equal(totals.held, 2, 'held once');
});

// Goal: a server that is away is seen as away; the hold is there when it is back.
onEvent('a killed server is noticed, and its return too', {}, async ({ server, page }) => {
  await live(page);
  await hold(page, 'A-1');
  await server.kill();
  await until('reconnecting', async () => (await state(page)) === 'Reconnecting');
  await page.getByText('The connection is lost.').waitFor();
  await page.getByRole('timer').waitFor();
  await server.up();
  await live(page);
  await heading(page, 'Held for you');
  await shows(page, 'A-1', 'held for you');
});

// Goal: a decline keeps the seats; the next try pays.
onEvent('a declined payment leaves the seats held', {}, async ({ page }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Decline');
  await page.getByText('The payment was declined or cancelled.').waitFor();
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Twice');
  await heading(page, 'Bought');
});

// Goal: the page names no payment. The reference comes from the server, and reload and a second tab show the same one.
onEvent('the server names the payment', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  const { hold_key } = await kept(page, event);
  const asked = page.waitForRequest('**/pay');
  await press(page, 'Pay 45.00 EUR');
  const body = (await asked).postDataJSON();
  assert.deepEqual(Object.keys(body), ['return_url']);
  assert.ok(body.return_url.startsWith(`${server.url}/#event=`), body.return_url);
  assert.ok(!body.return_url.includes(hold_key) && !body.return_url.includes('ticket'), body.return_url);
  await heading(page, 'Pay for your seats');
  const { payment_ref } = await holdOf(server, page, event);
  assert.equal(await reference(page), payment_ref);
  await page.reload();
  await heading(page, 'Pay for your seats');
  assert.equal(await reference(page), payment_ref);
  const second = await page.context().newPage();
  await second.goto(page.url());
  await heading(second, 'Pay for your seats');
  assert.equal(await reference(second), payment_ref);
  await press(second, 'Authorise');
  await heading(page, 'Bought');
  await heading(second, 'Bought');
});

// Goal: a payment can be given up. The seats are held as before, every tab says so, and the next payment is another one.
onEvent('a payment is cancelled, and the next one is another', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  const first = await reference(page);
  const second = await page.context().newPage();
  await second.goto(page.url());
  await heading(second, 'Pay for your seats');
  await press(page, giveUp);
  for (const tab of [page, second]) {
    await tab.locator('.note-place').getByText('The payment is cancelled. Your seats are still held for you.').waitFor();
    await heading(tab, 'Held for you');
  }
  assert.equal((await holdOf(server, page, event)).state, 'active');
  assert.deepEqual(await findings(page), []);
  await shot(page, 'buy-cancelled');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  assert.notEqual(await reference(page), first);
  await press(page, 'Approve');
  await heading(page, 'Bought');
  assert.equal((await server.ask('GET', `/v1/events/${event}/invariants`)).ok, true);
});

// Goal: a lost answer to the cancelling is unknown, and asking again cancels once.
onEvent('a lost answer to a cancel is unknown', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  await page.route('**/pay/cancel', async (route) => {
    await route.fetch();
    await route.abort();
  });
  await press(page, giveUp);
  await page.getByText('whether it has cancelled the payment').waitFor();
  assert.equal((await holdOf(server, page, event)).state, 'active');
  await page.unroute('**/pay/cancel');
  await press(page, 'Ask again');
  await page.getByText('The payment is cancelled.').waitFor();
  await heading(page, 'Held for you');
});

// Goal: the buyer goes to the page of the test provider, looks back, pays there, and comes back to seats that are sold.
onEvent('paying on the page of the test provider', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  const link = page.getByRole('link', { name: 'its payment page' });
  assert.equal(await link.getAttribute('href'), (await holdOf(server, page, event)).pay_url);
  await link.click();
  await heading(page, 'Test payment provider');
  await page.goBack();
  await heading(page, 'Pay for your seats');
  await link.click();
  await press(page, 'Cancel and go back');
  // The bank says so at once: the seats are held, and can be paid again.
  await heading(page, 'Held for you');
  assert.ok(page.url().endsWith(`#event=${event}`), page.url());
  await press(page, 'Pay 45.00 EUR');
  await link.click();
  await press(page, 'Pay now');
  await heading(page, 'Bought');
  await page.getByText('Your seats are bought.').waitFor();
  assert.equal(await seatState(server, event, 'A-1'), 'sold');
});

// Goal: with a real provider the way to its page comes first. Names as long as they may be do not widen the page.
// Money that is only authorised sells, and is captured after the sale.
onEvent('a provider with a page', { provider: 'authorise', viewport: { width: 390, height: 740 } }, async ({ server, page, event, provider }) => {
  await live(page);
  await press(page, 'Hold the best 2 seats');
  await heading(page, 'Held for you');
  await page.getByRole('button', { name: /^Pay / }).click();
  const link = page.getByRole('link', { name: 'Go to the payment page' });
  await link.waitFor();
  assert.equal((await reference(page)).length, 128);
  assert.equal(await sideways(page), 0);
  assert.equal(await page.locator('.basket > div').evaluate((pane) => pane.scrollWidth - pane.clientWidth), 0, 'the pane');
  assert.equal(await page.getByRole('heading', { name: 'Pay with the test provider' }).count(), 0);
  const { y, height } = await page.getByRole('button', { name: giveUp }).boundingBox();
  assert.ok(y + height <= 740, 'the way back is in sight too');
  assert.deepEqual(await findings(page), []);
  await shot(page, 'buy-pay-page');
  await page.setViewportSize({ width: 1280, height: 800 });
  assert.equal(await page.locator('.basket > div').evaluate((pane) => pane.scrollWidth - pane.clientWidth), 0, 'the wide pane');
  await shot(page, 'buy-pay-page-wide');
  await link.click();
  await heading(page, 'Pay here');
  await provider.tell(server, provider.last, 'authorised');
  await page.getByRole('link', { name: 'Back to the shop' }).click();
  await heading(page, 'Bought');
  await until('it is captured', async () => (await server.ask('GET', `/v1/events/${event}/report`)).orders[0].capture.state === 'captured');
  assert.deepEqual(provider.captures, [provider.last.payment_ref]);
});

// Goal: money that was quicker than the cancel is the sale, and the page shows it.
onEvent('a cancel that comes too late', { provider: 'capture' }, async ({ server, page, event, provider }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  provider.last.outcome = 'captured';
  await press(page, giveUp);
  // The provider said so when it was asked to cancel, though its callback has not come yet.
  await heading(page, 'Bought');
  assert.equal(await seatState(server, event, 'A-1'), 'sold');
  assert.deepEqual(await findings(page), []);
  await provider.tell(server, provider.last, 'captured');
  assert.equal((await server.ask('GET', `/v1/events/${event}/invariants`)).ok, true);
});

// Goal: a payment that was sold while the answer to the cancel was on its way is shown as the sale that it is.
onEvent('a cancel after the sale shows the sale', { provider: 'capture' }, async ({ server, page, provider }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  await page.route('**/pay/cancel', async (route) => {
    await provider.tell(server, provider.last, 'captured');
    await route.continue();
  });
  await press(page, giveUp);
  await heading(page, 'Bought');
  await page.getByText('Your seats are bought.').waitFor();
});

// Goal: an authorised payment that buys nothing is cancelled, and the buyer reads that no money was taken.
onEvent('no money was taken: authorised too little', { provider: 'authorise' }, async ({ server, page, event, provider }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await heading(page, 'Pay for your seats');
  await provider.tell(server, provider.last, 'authorised', 2000);
  await page.getByText('The payment is cancelled: no money was taken. Your seats are still held for you.').waitFor();
  await until('it is cancelled', async () => (await server.ask('GET', `/v1/events/${event}/report`)).late_payments[0].state === 'cancelled');
  await page.reload();
  await heading(page, 'Held for you');
  await page.locator('.steps summary').click();
  await page.getByText('20.00 EUR: cancelled, no money was taken').waitFor();
  assert.deepEqual(await findings(page), []);
  await shot(page, 'buy-no-money');
});

onEvent('no money was taken: authorised too late', { provider: 'authorise', event: { pay_ms: 8000 } }, async ({ server, page, provider }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await page.getByText('The time to pay is over.').waitFor({ timeout: 60_000 });
  await provider.tell(server, provider.last, 'authorised');
  await page.getByText('Your payment did not buy your seats. The payment is cancelled: no money was taken.').waitFor();
  await until('the provider is asked to', async () => provider.cancels.length > 0);
});

// Goal: too little money buys nothing; the buyer sees that it goes back, and pays again or gives the seats back.
onEvent('too little money goes back, and the seats stay held', {}, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Too little');
  await page.getByText('What came did not fit what the seats cost').waitFor();
  await heading(page, 'Held for you');
  await page.locator('.steps summary').click();
  await page.getByText('22.50 EUR').waitFor();
  await page.getByText('it is less than the hold costs').waitFor();
  assert.deepEqual(await findings(page), []);
  await until('it went back', async () => (await server.ask('GET', `/v1/events/${event}/report`)).late_payments[0].state === 'refunded');
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Approve');
  await heading(page, 'Bought');
});

// Goal: money that comes too late buys the same seats if they are free, and the buyer is told.
onEvent('late money buys seats that are still free', { event: { pay_ms: 8000 } }, async ({ page }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Too late');
  await page.getByText('The time to pay is over.').or(page.getByText('Your money came late')).waitFor();
  await page.getByText('Your money came late').waitFor();
  await heading(page, 'Bought');
});

/** The page's hold runs out while it pays, somebody else takes its seats, and only then the test provider pays. */
const payTooLate = async ({ server, page, event }, ids, lost) => {
  await hold(page, ...ids);
  await page.getByRole('button', { name: /^Pay / }).click();
  await heading(page, 'Pay for your seats');
  const { hold_id, hold_key } = await kept(page, event);
  const { payment_ref } = await holdOf(server, page, event);
  await page.getByText('The time to pay is over.').waitFor({ timeout: 60_000 });
  await until('somebody else has them', () => rival(server, event, lost, 'quick').catch(() => null));
  const order = { hold_id, payment_ref, outcome: 'approve' };
  await server.ask('POST', '/v1/demo/pay', order, undefined, { 'Leasehold-Hold-Key': hold_key });
};

// Goal: money that comes too late for its seats is offered others as good; the buyer takes them, with nothing to pay.
onEvent('late money is offered other seats, and they are taken', { event: { pay_ms: 8000 } }, async ({ server, page, event }) => {
  await live(page);
  await payTooLate({ server, page, event }, ['A-1'], ['A-1']);
  await page.getByText('These are as good, and held for you.').waitFor();
  await heading(page, 'Held for you');
  assert.equal(await page.getByRole('heading', { name: 'Pay with the test provider' }).count(), 0);
  await page.locator('.steps summary').click();
  await page.getByText('other seats as good are held').waitFor();
  await page.getByText('to take them; after that your money goes back').waitFor();
  assert.equal(await sideways(page), 0);
  await shot(page, 'buy-offered');
  assert.deepEqual(await findings(page), []);
  await press(page, 'Take these seats');
  await heading(page, 'Bought');
  const { orders } = await server.ask('GET', `/v1/events/${event}/report`);
  assert.equal(orders.filter(({ seats }) => seats[0].id !== 'A-1').length, 1);
});

// Goal: whoever does not want the seats that are offered has the money back.
onEvent('an offer is declined, and the money goes back', { event: { pay_ms: 8000 } }, async ({ server, page, event }) => {
  await live(page);
  await payTooLate({ server, page, event }, ['A-1'], ['A-1']);
  await press(page, 'No, my money back');
  await page.getByText('Your money goes back to you.').waitFor();
  const money = async () => (await server.ask('GET', `/v1/events/${event}/report`)).late_payments[0];
  await until('it went back', async () => (await money()).state === 'refunded');
  assert.deepEqual((await money()).steps.map(({ state }) => state), ['received', 'offered', 'refund_due', 'refunded']);
});

// Goal: where nothing as good is left the money goes back by itself, and the buyer reads it, step by step.
const twoSeats = [1, 2].map((number) => ({ id: `A-${number}`, section: 'Stalls', row: 'A', number, price: 4500 }));
onEvent('late money without seats goes back', { event: { pay_ms: 8000, seats: twoSeats, areas: [] } }, async ({ server, page, event }) => {
  await live(page);
  await payTooLate({ server, page, event }, ['A-1'], ['A-1', 'A-2']);
  await page.getByText('It goes back to you.').waitFor();
  await page.locator('.steps summary').click();
  await page.getByText('there are no others as good').waitFor();
  await shot(page, 'buy-refund');
  await until('it went back', async () => (await server.ask('GET', `/v1/events/${event}/report`)).late_payments[0].state === 'refunded');
});

// Goal: a bank that tells of a first try that failed after the second one that did not changes nothing.
onEvent('callbacks out of order', {}, async ({ page }) => {
  await live(page);
  await hold(page, 'A-1');
  await press(page, 'Pay 45.00 EUR');
  await press(page, 'Out of order');
  await heading(page, 'Bought');
});

// Goal: a hold that is left alone frees itself, and the page says so; the clock speaks at its marks and not between.
onEvent('an abandoned hold ends', { event: { ttl_ms: 40_000, max_hold_ms: 40_000 } }, async ({ server, page, event }) => {
  await live(page);
  await hold(page, 'A-1');
  const spoken = page.locator('.countdown [role=status]');
  assert.equal(await spoken.textContent(), '');
  assert.equal(await page.getByRole('button', { name: 'More time' }).getAttribute('aria-disabled'), 'true');
  await until('half a minute is announced', async () => (await spoken.textContent()) === '30 seconds left to pay for your seats.');
  await page.getByText('Your time is over.').waitFor({ timeout: 60_000 });
  await shows(page, 'A-1', 'available');
  assert.equal(await seatState(server, event, 'A-1'), 'free');
});

// Goal: the buyer's own wall clock has no part in it.
onEvent('a wall clock set to next year changes nothing', {}, async ({ page }) => {
  await page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 365 * 86_400_000;
  });
  await page.reload();
  await live(page);
  await hold(page, 'A-1');
  const left = await clock(page);
  assert.ok(left > 200 && left <= 300, `${left} s left`);
});

// Goal: where keys are asked for, a shop's link brings the ticket, which does not stay in the address; without one the
// page says what to do.
onEvent('a ticket comes by link', { demo: false, roles: ['admin', 'boxoffice'] }, async ({ server, page, event }) => {
  await page.getByText('Please come in again through the shop').waitFor();
  const { ticket } = await server.ask('POST', '/v1/tickets', { event, buyer: 'b-17' });
  await page.goto(`${server.url}/docs`);
  await page.goto(`${server.url}/#event=${event}&ticket=${encodeURIComponent(ticket)}`);
  await live(page);
  assert.ok(!page.url().includes('ticket'));
  await hold(page, 'A-1');
  const { seats } = await server.ask('GET', `/v1/events/${event}/availability?detail=1`);
  assert.equal(seats.find(({ id }) => id === 'A-1').buyer, 'b-17');
});

// Goal: whoever opens the demo has a hall of 400 seats before them, on sale.
onEvent('the demo opens on its hall', {}, async ({ server, page }) => {
  await page.goto(`${server.url}/docs`);
  await page.goto(`${server.url}/`);
  await live(page);
  await page.getByText('400 seats available').waitFor();
  assert.equal(await page.locator('.hall .seat').count(), 400);
  assert.equal(await page.locator('.hall .seat[tabindex="0"]').count(), 1, 'one stop for Tab');
  await shot(page, 'buy-demo');
  await hold(page, 'F-10', 'F-11');
});

// Goal: places without a number, and the cap of one buyer over everything.
onEvent('places and the cap of a buyer', { event: { per_buyer: 3 } }, async ({ page }) => {
  await live(page);
  await page.getByLabel('floor').selectOption('2');
  await press(page, 'Hold 2 seats');
  await heading(page, 'Held for you');
  await page.getByText('18 places free').waitFor();
  await pick(page, 'A-1', 'A-2');
  await press(page, 'Add 2 seats');
  await page.getByRole('alert').getByText('more than one buyer may have').first().waitFor();
  await page.locator('.total').getByText('40.00 EUR').waitFor();
});

// Goal: on a phone the best seats come first, in few touches, and nothing needs sideways scrolling.
for (const width of [320, 390]) {
  onEvent(`a phone ${width} wide`, { viewport: { width, height: 740 } }, async ({ page }) => {
    await live(page);
    await heading(page, 'The best seats there are');
    assert.equal(await sideways(page), 0, 'best');
    await shot(page, `buy-small-${width}`);
    await press(page, 'Hold the best 2 seats');
    await heading(page, 'Held for you');
    assert.equal(await page.locator('.things li').count(), 2);
    assert.equal(await sideways(page), 0, 'held');
    await shot(page, `buy-small-${width}-held`);
    for (const way of ['Map', 'List']) {
      await press(page, way);
      await seat(page, 'A-1').waitFor();
      assert.equal(await sideways(page), 0, way);
      await shot(page, `buy-small-${width}-${way.toLowerCase()}`);
    }
  });
}

// Goal: nobody is kept out by contrast, missing names or roles, in light and in dark, in any state of the page.
for (const colorScheme of ['light', 'dark']) {
  onEvent(`no barriers for buyers, ${colorScheme}`, { colorScheme, reducedMotion: 'reduce' }, async ({ server, page, event }) => {
    await rival(server, event, ['C-1', 'C-2']);
    await server.ask('PUT', `/v1/events/${event}/blocks`, { block: ['A-1'], unblock: [], reason: 'house' });
    await live(page);
    await shows(page, 'C-1', 'held by somebody else');
    await shows(page, 'A-1', 'not for sale');
    await pick(page, 'B-2', 'B-3');
    assert.deepEqual(await findings(page), [], 'map');
    await shot(page, `buy-map-${colorScheme}`);
    await press(page, 'List');
    assert.deepEqual(await findings(page), [], 'list');
    await press(page, 'Best available');
    assert.deepEqual(await findings(page), [], 'best');
    await press(page, 'Hold 2 seats');
    await heading(page, 'Held for you');
    assert.deepEqual(await findings(page), [], 'held');
    await press(page, 'Pay 90.00 EUR');
    await heading(page, 'Pay for your seats');
    assert.deepEqual(await findings(page), [], 'paying');
    await press(page, 'Approve');
    await heading(page, 'Bought');
    assert.deepEqual(await findings(page), [], 'bought');
    await shot(page, `buy-bought-${colorScheme}`);
  });
}

// Goal: a server that sells nothing says so, and leads on to what it does.
test('where nothing is sold, the page leads on', async () => {
  const server = await Server.start();
  const page = await openPage(theBrowser(), server, { path: '/' });
  try {
    await page.getByText('Nothing is on sale.').waitFor();
    assert.deepEqual(await findings(page), []);
    await page.getByRole('link', { name: 'what is held' }).click();
    await page.getByRole('heading', { name: 'Nothing is held' }).waitFor();
    assert.deepEqual(page.complaints, []);
  } finally {
    await page.context().close();
    await server.stop();
  }
});
