// What the tests of the box office's pages share: an event of their own on a real server, and words for its seats.

import { test } from 'node:test';
import assert from 'node:assert/strict';
import { openBrowser, openPage, Server, shot, until } from './harness.mjs';
import { Provider } from './provider.mjs';

/** A hall of its own: two sections, so many rows of so many seats, and a place to stand. */
export function hallOf(rows, seats) {
  const all = [];
  for (const [section, from, price] of [['Stalls', 0, 4500], ['Circle', rows, 3000]]) {
    for (let r = from; r < from + rows; r++) {
      const row = String.fromCharCode(65 + r);
      for (let n = 1; n <= seats; n++) all.push({ id: `${row}-${n}`, section, row, number: n, price });
    }
  }
  return all;
}

export async function makeEvent(server, settings = {}) {
  const { event_id } = await server.ask('POST', '/v1/events', {
    name: 'A small gala',
    currency: 'EUR',
    ttl_ms: 300_000,
    max_hold_ms: 900_000,
    pay_ms: 600_000,
    per_buyer: 8,
    on_sale: true,
    seats: hallOf(3, 8),
    areas: [{ id: 'floor', capacity: 20, price: 2000 }],
    ...settings,
  });
  return event_id;
}

/** Another buyer, by the API. */
export async function rival(server, event, seats, buyer = 'rival') {
  return server.ask('POST', `/v1/events/${event}/holds`, { seats, buyer });
}

export async function seatState(server, event, id) {
  const { seats } = await server.ask('GET', `/v1/events/${event}/availability`);
  return seats.find((seat) => seat.id === id)?.state ?? 'free';
}

export const seat = (page, id) => page.locator(`[data-seat="${id}"]`);
export const shows = (page, id, word) =>
  until(`${id} is ${word}`, async () => (await seat(page, id).getAttribute('aria-label'))?.endsWith(word));
export const clock = async (page) => {
  const [minutes, seconds] = (await page.getByRole('timer').textContent()).split(':').map(Number);
  return minutes * 60 + seconds;
};

let browser;
export const opened = async () => (browser = await openBrowser());
export const theBrowser = () => browser;

/** A test with a server, an event and a page of its own, all ended whatever happens. With `provider`, a payment provider too. */
export function onEvent(title, options, body) {
  test(title, async () => {
    const provider = options.provider === undefined ? null : await Provider.start(options.provider);
    const args = provider !== null ? ['--config', provider.config] : options.demo === false ? [] : ['--demo'];
    let server;
    let page;
    try {
      server = await Server.start({ args, roles: options.roles ?? [] });
      const event = await makeEvent(server, options.event);
      const { event: _, demo: __, provider: ___, staff = false, ...more } = options;
      page = await openPage(browser, server, { ...more, path: `${staff ? '/admin' : '/'}#event=${event}` });
      await body({ server, page, event, provider });
      assert.deepEqual(page.complaints, [], 'the browser has nothing to complain of');
    } catch (error) {
      if (page !== undefined) await shot(page, `failed-${title.replaceAll(/\W+/g, '-')}`).catch(() => {});
      throw error;
    } finally {
      await page?.context().close();
      await server?.stop();
      await provider?.stop();
    }
  });
}
