// The parts of the box office's pages that need no browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const load = async (name) => (await runnerImport(fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url)))).module;
const money = await load('office/money');
const { hall, beside } = await load('office/hall');
const labels = await load('office/labels');
const { Seats } = await load('office/seats');
const { clockFace, passed } = await load('buy/marks');

const row = (id, from, to) => ({ id, seats: Array.from({ length: to - from + 1 }, (_, i) => ({ id: `${id}-${from + i}`, number: from + i, price: 4500 })) });
const plan = (sections) => ({ event_id: 'e', name: 'Gala', currency: 'EUR', areas: [], sections });

// Goal: minor units become what people read, for currencies with two, none and three digits, and for unknown ones.
test('money', () => {
  assert.equal(money.price(4500, 'EUR'), '45.00 EUR');
  assert.equal(money.price(4500, 'JPY'), '4,500 JPY');
  assert.equal(money.amount(4500, 'KWD'), '4.500');
  assert.equal(money.amount(123456789, 'EUR'), '1,234,567.89');
  assert.equal(money.price(4500, 'not one'), '45.00 not one');
});

// Goal: a seat is called by its whole name; several in few words; a strange id and a strange reason are shown as they are.
test('labels', () => {
  const one = hall(plan([{ id: 'S', rows: [row('C', 10, 12)] }]));
  assert.equal(labels.full(one.seats.get('C-12'), 'EUR', 'available'), 'Row C, seat 12, 45.00, available');
  assert.equal(labels.places(one, ['C-10', 'C-11', 'C-12']), 'Row C, seats 10, 11 and 12');
  assert.equal(labels.places(one, ['C-10', 'nowhere']), 'Row C, seat 10; nowhere');
  const two = hall(plan([{ id: 'S', rows: [row('A', 1, 2)] }, { id: 'T', rows: [row('B', 1, 1)] }]));
  assert.equal(labels.places(two, ['A-1', 'B-1']), 'S, row A, seat 1; T, row B, seat 1');
  assert.equal(labels.why('taken'), 'is held by somebody else');
  assert.equal(labels.why('of_another_kind'), 'of another kind');
});

// Goal: without coordinates rows are centred under each other; with them, neighbours are one pitch apart.
test('where seats are', () => {
  const stacked = hall(plan([{ id: 'S', rows: [row('A', 1, 4), row('B', 1, 2)] }]));
  assert.deepEqual([...stacked.seats.values()].map(({ x }) => x), [0, 1, 2, 3, 1, 2]);
  assert.ok(stacked.seats.get('B-1').y === stacked.seats.get('A-1').y + 1);
  const drawn = plan([{ id: 'S', rows: [row('A', 1, 3)] }]);
  drawn.sections[0].rows[0].seats.forEach((seat, i) => Object.assign(seat, { x: 100 + i * 25, y: 700 }));
  assert.deepEqual([...hall(drawn).seats.values()].map(({ x }) => x), [0, 1, 2]);
  assert.deepEqual(hall(plan([])).rows, []);
});

// Goal: arrows lead to the seat beside, and up and down to the nearest one of the next row, also across sections.
test('keys lead from seat to seat', () => {
  const at = hall(plan([{ id: 'S', rows: [row('A', 1, 4), row('B', 1, 2)] }, { id: 'T', rows: [row('C', 1, 4)] }]));
  const path = (from, ...keys) => keys.reduce((id, key) => beside(at, id, key) ?? id, from);
  assert.equal(path('A-1', 'ArrowRight', 'ArrowRight'), 'A-3');
  assert.equal(path('A-3', 'ArrowDown'), 'B-2');
  assert.equal(path('A-1', 'ArrowDown', 'ArrowDown'), 'C-2');
  assert.equal(path('C-4', 'ArrowUp', 'ArrowUp', 'Home'), 'A-1');
  assert.equal(beside(at, 'A-1', 'ArrowLeft'), undefined);
  assert.equal(beside(at, 'A-1', 'ArrowUp'), undefined);
  assert.equal(beside(at, 'A-1', 'x'), undefined);
  assert.equal(path('A-1', 'End'), 'A-4');
  assert.equal(path('A-1', 'PageDown'), 'C-1');
});

// Goal: news is taken once and in order, a gap is noticed, an answer that news overtook is not taken.
test('seats by news', () => {
  const seats = new Seats();
  seats.take({ seq: 5, seats: [{ id: 'a', state: 'held' }], areas: [{ id: 'floor', free: 3 }] });
  assert.deepEqual([seats.state('a'), seats.state('b'), seats.places('floor')], ['held', 'free', 3]);
  assert.deepEqual(seats.hear({ seq: 6, seats: [{ id: 'a', state: 'sold' }, { id: 'b', state: 'free' }] }), ['a']);
  assert.deepEqual(seats.hear({ seq: 6, seats: [{ id: 'a', state: 'free' }] }), [], 'told twice');
  assert.equal(seats.hear({ seq: 8, seats: [] }), null, 'seven is missing');
  assert.equal(seats.take({ seq: 4, seats: [], areas: [] }), false, 'older than what is known');
  assert.equal(seats.state('a'), 'sold');
  assert.equal(seats.take({ seq: 4, seats: [], areas: [] }, true), true, 'after a reset it stands');
  assert.deepEqual(seats.count(['a', 'b']), { seats: 2, free: 2, held: 0, paying: 0, sold: 0, blocked: 0 });
});

// Goal: the clock speaks at 5, 2 and 1 minutes and 30 s, once each, and not at the start, after a renewal or at the end.
test('when the countdown speaks', () => {
  const said = [];
  let before = null;
  const tick = (left) => {
    const words = passed(before, left);
    if (words !== null) said.push(words.slice(0, 9));
    before = left;
  };
  for (let left = 310_000; left >= -1000; left -= 100) tick(left);
  assert.deepEqual(said, ['5 minutes', '2 minutes', '1 minute ', '30 second']);
  said.length = 0;
  before = null;
  for (const left of [300_000, 299_900, 125_000, 290_000]) tick(left);
  assert.deepEqual(said, [], 'neither at the start nor at a renewal');
  for (const left of [130_000, 40_000]) tick(left);
  assert.deepEqual(said, ['1 minute '], 'after a sleep only the last mark');
  assert.deepEqual([299_001, 60_000, 500, 0, -5].map(clockFace), ['5:00', '1:00', '0:01', '0:00', '0:00']);
});
