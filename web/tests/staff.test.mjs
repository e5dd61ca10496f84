// The page for staff in a real browser, against a real server.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before } from 'node:test';
import { findings, focusOn, lostFocus, shot, sideways, state, until, watchFocus } from './harness.mjs';
import { onEvent, opened, rival, seat, seatState, shows, theBrowser } from './office.mjs';

before(opened);
after(() => theBrowser()?.close());

const live = (page) => until('the page is live', async () => (await state(page)) === 'Live');
const press = (page, name) => page.getByRole('button', { name, exact: true }).click();
const figure = (page, name) => page.locator('.numbers > div', { has: page.getByText(name, { exact: true }) }).locator('dd').textContent();
const give = async (page, reason, action) => {
  await page.getByLabel('Reason, for the record').fill(reason);
  await page.getByRole('dialog').getByRole('button', { name: action, exact: true }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
};

// Goal: staff see who holds what, live, end a hold with a reason, and can say afterwards why it was lost.
onEvent('a hold is seen, released by force and explained', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  await rival(server, event, ['C-1', 'C-2'], 'b-17');
  await until('the holder shows', async () => (await seat(page, 'C-1').getAttribute('aria-label')).includes('held by b-17'));
  assert.equal(await figure(page, 'held'), '2');
  await press(page, 'Holds');
  await page.getByRole('cell', { name: 'b-17' }).waitFor();
  await shot(page, 'staff-holds');
  await press(page, 'Hall');
  await seat(page, 'C-1').click();
  await page.getByRole('heading', { name: 'Row C, seat 1: held' }).waitFor();
  await press(page, 'Release…');
  await press(page, 'Release now');
  await page.getByText('Please give a reason.').waitFor();
  await give(page, 'they called and cancelled', 'Release now');
  await page.getByRole('heading', { name: 'Row C, seat 1: free' }).waitFor();
  await page.locator('.history').getByText('they called and cancelled').waitFor();
  await shot(page, 'staff-seat');
  assert.equal(await seatState(server, event, 'C-2'), 'free');
});

// Goal: seats are blocked and unblocked in bulk, by mouse and by keyboard, with a reason.
onEvent('seats are blocked in bulk', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  await seat(page, 'A-1').focus();
  await watchFocus(page);
  for (let i = 0; i < 3; i++) await page.keyboard.press('Shift+ArrowRight');
  await page.getByText('3 seats marked').waitFor();
  await press(page, 'Block 3…');
  await give(page, 'camera stand', 'Block');
  await shows(page, 'A-3', 'camera stand');
  assert.equal(await seatState(server, event, 'A-4'), 'blocked');
  await press(page, 'Sections');
  await page.getByRole('button', { name: 'Mark section Stalls' }).click();
  await press(page, 'Unblock 3…');
  await give(page, 'no cameras', 'Unblock');
  await until('all are free', async () => (await figure(page, 'blocked')) === '0');
  await shot(page, 'staff-sections');
  assert.deepEqual(await lostFocus(page), []);
});

// Goal: sales are stopped and go on, and a buyer is refused meanwhile.
onEvent('sales are frozen and go on', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  await press(page, 'Stop sales…');
  await give(page, 'wrong prices', 'Stop');
  await page.getByRole('button', { name: 'Go on selling…' }).waitFor();
  await assert.rejects(rival(server, event, ['A-1']));
  await press(page, 'Go on selling…');
  await give(page, 'prices are right', 'Go on');
  await page.getByRole('button', { name: 'Stop sales…' }).waitFor();
  await rival(server, event, ['A-1']);
  await shows(page, 'A-1', 'held by rival for 0m');
});

// Goal: the figures, the proof and the files.
onEvent('figures, proof and CSV', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  const held = await rival(server, event, ['A-1', 'A-2'], '=cmd()');
  await server.ask('POST', `/v1/holds/${held.hold_id}/confirm`, { payment_ref: 'door-1' }, undefined, { 'Leasehold-Hold-Key': held.hold_key });
  await until('sold', async () => (await figure(page, 'sold')) === '2');
  await until('the lag is on screen', async () => /s$/.test(await figure(page, 'sweeper lag')));
  await until('the conflict rate is on screen', async () => /%$/.test(await figure(page, 'conflict rate')));
  await press(page, 'Proof');
  await page.getByText('All checks hold.').waitFor();
  await page.getByText('no seat sold twice').waitFor();
  await shot(page, 'staff-proof');
  for (const [name, line] of [['Orders as CSV', 'door-1'], ['Everything as CSV', 'A-1']]) {
    const [download] = await Promise.all([page.waitForEvent('download'), press(page, name)]);
    assert.ok((await readFile(await download.path(), 'utf8')).includes(line), name);
  }
});

/** Sells seats at the door. */
const sell = async (server, event, seats, buyer, payment_ref) => {
  const held = await rival(server, event, seats, buyer);
  return server.ask('POST', `/v1/holds/${held.hold_id}/confirm`, { payment_ref }, undefined, { 'Leasehold-Hold-Key': held.hold_key });
};
const lawful = async (server, event) => assert.equal((await server.ask('GET', `/v1/events/${event}/invariants`)).ok, true);

// Goal: what was sold is taken back with a reason, a seat or the whole order, by keyboard; the seats are free, and the money
// goes back through the provider, which staff can follow.
onEvent('an order is voided, and its money goes back', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  await sell(server, event, ['A-1', 'A-2', 'A-3'], 'b-5', 'pi_5');
  await until('sold', async () => (await figure(page, 'sold')) === '3');
  await seat(page, 'A-1').click();
  await page.getByRole('heading', { name: 'Row A, seat 1: sold' }).waitFor();
  const open = page.getByRole('button', { name: 'Void…' });
  await open.focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  assert.equal(await page.getByLabel('Only this seat').isChecked(), true);
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('name')), 'void-what');
  assert.deepEqual(await findings(page), [], 'void');
  await shot(page, 'staff-void');
  await page.getByLabel('Reason, for the record').focus();
  await page.keyboard.press('Enter');
  await page.getByText('Please give a reason.').waitFor();
  await page.keyboard.type('broke a leg');
  await page.keyboard.press('Enter');
  await page.getByText('Voided. 45.00 EUR go back to the buyer.').waitFor();
  await page.getByRole('heading', { name: 'Row A, seat 1: free' }).waitFor();
  await page.locator('.history').getByText('broke a leg').first().waitFor();
  assert.equal(await seatState(server, event, 'A-2'), 'sold');
  await seat(page, 'A-2').click();
  await page.getByRole('heading', { name: 'Row A, seat 2: sold' }).waitFor();
  await press(page, 'Void…');
  await page.getByLabel('The whole order').check();
  await give(page, 'the whole school is ill', 'Void now');
  await page.getByText('Voided. 90.00 EUR go back to the buyer.').waitFor();
  assert.equal(await seatState(server, event, 'A-3'), 'free');
  await press(page, 'Payments');
  await until('both went back', async () => (await page.getByRole('cell', { name: 'went back', exact: true }).count()) === 2);
  await shot(page, 'staff-refunds');
  await lawful(server, event);
});

// Goal: a sold seat is moved with a reason; what is not to be had is refused in words, and the money is settled both ways.
onEvent('a sold seat is moved', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  const order = await sell(server, event, ['A-1'], 'b-6', 'pi_6');
  await rival(server, event, ['D-1'], 'b-7');
  await until('sold', async () => (await figure(page, 'sold')) === '1');
  await seat(page, 'A-1').click();
  const move = async (to, reason) => {
    await press(page, 'Move…');
    await page.getByLabel('To the seat').fill(to);
    await page.getByLabel('Reason, for the record').fill(reason);
    await page.getByRole('dialog').getByRole('button', { name: 'Move now' }).click();
  };
  await move('Z-9', 'a pillar');
  await page.getByText('There is no seat Z-9 in this hall.').waitFor();
  await page.getByLabel('To the seat').fill('D-1');
  await page.getByRole('dialog').getByRole('button', { name: 'Move now' }).click();
  await page.getByRole('dialog').getByText('D-1: taken').waitFor();
  await page.getByLabel('To the seat').fill('D-2');
  assert.deepEqual(await findings(page), [], 'move');
  await shot(page, 'staff-move');
  await page.getByRole('dialog').getByRole('button', { name: 'Move now' }).click();
  await page.getByText('Moved to D-2. 15.00 EUR go back to the buyer.').waitFor();
  assert.equal(await seatState(server, event, 'A-1'), 'free');
  await seat(page, 'D-2').click();
  await page.getByRole('heading', { name: 'Row D, seat 2: sold' }).waitFor();
  await move('B-1', 'wants to see');
  await page.getByText('Moved to B-1. The buyer owes 15.00 EUR.').waitFor();
  const { seats, total, paid, refunded, owed } = await server.ask('GET', `/v1/orders/${order.order_id}`);
  assert.deepEqual([seats[0].id, total, paid, refunded, owed], ['B-1', 4500, 4500, 1500, -1500]);
  await lawful(server, event);
});

// Goal: money that the provider does not have, as cash at the door, is settled by hand, with a reason, and stays listed.
onEvent('what is owed is settled by hand', { staff: true, demo: false }, async ({ server, page, event }) => {
  await live(page);
  const { order_id } = await sell(server, event, ['A-1'], 'b-8', 'cash-8');
  await server.ask('POST', `/v1/orders/${order_id}/void`, { reason: 'ill' });
  await press(page, 'Payments');
  await page.getByRole('cell', { name: 'must go back', exact: true }).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Give back cash-8' }).count(), 0, 'it is due already');
  await press(page, 'Settled by hand cash-8');
  assert.deepEqual(await findings(page), []);
  await give(page, 'paid out at the desk', 'It is settled');
  await page.getByRole('cell', { name: 'settled by hand', exact: true }).waitFor();
  await page.getByText('paid out at the desk').waitFor();
  await until('nobody waits for it', async () => (await figure(page, 'late payments')) === '0');
  await shot(page, 'staff-closed');
  await lawful(server, event);
});

/** Holds seats and begins their payment, which the provider makes. */
const beginPaying = async (server, event, seats, buyer) => {
  const held = await rival(server, event, seats, buyer);
  await server.ask('POST', `/v1/holds/${held.hold_id}/pay`, {}, undefined, { 'Leasehold-Hold-Key': held.hold_key });
};

// Goal: staff read who said that an order is paid, and whether its money is taken. What the provider refuses is on a list
// until the order is voided; then no money moved.
onEvent('a capture that is refused', { staff: true, provider: 'authorise' }, async ({ server, page, event, provider }) => {
  await live(page);
  await beginPaying(server, event, ['A-1'], 'b-10');
  await provider.tell(server, provider.last, 'authorised');
  await beginPaying(server, event, ['A-3'], 'b-11');
  const refused = Object.assign(provider.last, { refusesCapture: true });
  await provider.tell(server, refused, 'authorised');
  await until('one capture failed', async () => (await page.getByText('failed captures').count()) === 1 && (await figure(page, 'failed captures')) === '1');
  const fact = (name) => page.locator('section > .facts-of > div', { has: page.getByText(name, { exact: true }) }).locator('dd');
  await seat(page, 'A-1').click();
  await until('it is captured', async () => (await fact('capture').textContent()) === 'captured, 45.00 EUR');
  assert.equal(await fact('said by').textContent(), 'the payment provider');
  await page.locator('.history').getByText('the payment provider').first().waitFor();
  await press(page, 'Payments');
  const list = page.getByRole('region', { name: 'Sold and not captured' });
  await list.getByRole('cell', { name: 'refused by the provider: staff decides, 45.00 EUR' }).waitFor();
  assert.equal(await list.getByRole('row').count(), 2, 'its heading, and the one that failed');
  assert.deepEqual(await findings(page), []);
  await shot(page, 'staff-capture');
  await press(page, 'Hall');
  await seat(page, 'A-3').click();
  await page.getByRole('heading', { name: 'Row A, seat 3: sold' }).waitFor();
  await press(page, 'Void…');
  await give(page, 'the card is closed', 'Void now');
  await press(page, 'Payments');
  await page.getByRole('cell', { name: 'cancelled, no money moved', exact: true }).waitFor();
  await until('nobody waits for it', async () => (await page.getByText('failed captures').count()) === 0);
  assert.deepEqual(provider.cancels, [refused.payment_ref]);
  await lawful(server, event);
});

// Goal: of a sale at the door staff read that somebody with a key said it was paid.
onEvent('a sale at the door has a source', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  await sell(server, event, ['A-1'], 'b-12', 'cash-12');
  await until('sold', async () => (await figure(page, 'sold')) === '1');
  await seat(page, 'A-1').click();
  const fact = (name) => page.locator('section > .facts-of > div', { has: page.getByText(name, { exact: true }) }).locator('dd');
  await until('the source shows', async () => (await fact('said by').count()) === 1 && (await fact('said by').textContent()) === 'somebody with a key');
  assert.equal(await fact('paid').textContent(), '45.00 EUR');
  assert.equal(await fact('capture').count(), 0);
  await press(page, 'Proof');
  await page.getByText('every cent has a source').waitFor();
  await page.getByText('tokens of a seat rise').waitFor();
});

// Goal: money without an answer is on a list.
onEvent('payments that wait are listed', { staff: true }, async ({ server, page, event }) => {
  await live(page);
  const held = await rival(server, event, ['A-1'], 'b-9');
  await server.ask('POST', `/v1/holds/${held.hold_id}/pay`, { payment_ref: 'pi_9' }, undefined, { 'Leasehold-Hold-Key': held.hold_key });
  await shows(page, 'A-1', 'paying by b-9 for 0m');
  await press(page, 'Payments');
  await page.getByRole('heading', { name: 'Stuck payments' }).waitFor();
  await page.getByText('pi_9').waitFor();
  await shot(page, 'staff-payments');
});

// Goal: where keys are asked for, this page asks for one, keeps it in this tab only, and forgets it.
onEvent('a key is asked for', { staff: true, demo: false, roles: ['admin', 'boxoffice'] }, async ({ server, page }) => {
  await page.getByRole('heading', { name: 'This server asks for a key' }).waitFor();
  await focusOn(page, 'key');
  await page.keyboard.type('wrong');
  await page.keyboard.press('Enter');
  await page.getByText('does not accept this key').waitFor();
  await page.locator('#key').fill(server.keys.boxoffice);
  await page.keyboard.press('Enter');
  await live(page);
  assert.ok(!page.url().includes(server.keys.boxoffice));
  await press(page, 'Forget key');
  await focusOn(page, 'key');
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

// Goal: small windows work, and nobody is kept out.
for (const colorScheme of ['light', 'dark']) {
  onEvent(`no barriers for staff, ${colorScheme}`, { staff: true, colorScheme }, async ({ server, page, event }) => {
    await live(page);
    await rival(server, event, ['A-1', 'A-2'], 'b-1');
    await until('the holder shows', async () => (await seat(page, 'A-1').getAttribute('aria-label')).includes('b-1'));
    for (const tab of ['Hall', 'Holds', 'Sections', 'Payments', 'Proof']) {
      await press(page, tab);
      await page.waitForTimeout(100);
      assert.deepEqual(await findings(page), [], tab);
    }
    await press(page, 'Hall');
    await seat(page, 'A-1').click();
    await page.locator('.history li').first().waitFor();
    assert.deepEqual(await findings(page), [], 'seat');
    await shot(page, `staff-${colorScheme}`);
    await press(page, 'Release…');
    await page.getByRole('dialog').waitFor();
    assert.deepEqual(await findings(page), [], 'question');
    await page.keyboard.press('Escape');
    await page.setViewportSize({ width: 360, height: 640 });
    await until('nothing goes sideways', async () => (await sideways(page)) === 0);
    await shot(page, `staff-small-${colorScheme}`);
  });
}
