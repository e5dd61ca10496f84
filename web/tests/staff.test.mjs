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
