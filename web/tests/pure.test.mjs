// The parts of the page that need no browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const load = async (name) => (await runnerImport(fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url)))).module;
const words = await load('shared/words');
const { compareNames } = await load('locks/order');
const { Cutter } = await load('shared/cutter');
const { Listing, contains } = await load('locks/listing');

const row = (name, token = '1', ends = 1000) => ({
  name,
  mode: 'exclusive',
  used: null,
  capacity: null,
  holders: [{ holder: `h-${name}`, token, since: 0, ends }],
  holdersTotal: 1,
  waiters: [],
  queueLen: 0,
});
const page = (names, more = false) => ({ resources: names.map((name) => row(name)), more });
const event = (kind, name, token = '1', holder = `h-${name}`) => ({ kind, token, resources: [name], holder });
const listed = (listing) => listing.rows.map((r) => r.name);

// Goal: times are said in words that fit their size, and never below zero.
test('spans in human words', () => {
  const said = [-5, 0, 8349, 9999, 10_000, 59_999, 60_000, 252_000, 3_600_000, 11_100_000, 187_200_000].map((ms) => words.span(ms));
  assert.deepEqual(said, ['0.0 s', '0.0 s', '8.3 s', '9.9 s', '10 s', '59 s', '1 min', '4 min 12 s', '1 h', '3 h 5 min', '2 d 4 h']);
  assert.deepEqual([0, 999, 1000, 61_000, 7_200_000, 90_000_000].map(words.ago), [
    'just now',
    'just now',
    '1 s ago',
    '1 min ago',
    '2 h ago',
    '1 d ago',
  ]);
  assert.deepEqual([0, 0.04, 0.1, 3.14159, 12.6, 12345.6].map(words.rate), ['0', '<0.1', '0.1', '3.1', '13', '12,346']);
});

// Goal: a name cannot hide anything or turn the text around it, and real letters of any script stay as they are.
test('what cannot be seen is shown by its code', () => {
  assert.equal(words.plain('safe\u202Egnp.exe'), 'safe⟨U+202E⟩gnp.exe');
  assert.equal(words.plain('a\u200Bb\u0000c\u2028d\ud800e\u{e0041}'), 'a⟨U+200B⟩b⟨U+0000⟩c⟨U+2028⟩d⟨U+D800⟩e⟨U+E0041⟩');
  assert.equal(words.plain(' seat 14  '), '␣seat 14␣␣');
  assert.equal(words.plain('Sitz-ß-座席-مقعد-😀'), 'Sitz-ß-座席-مقعد-😀');
});

// Goal: the page orders names as the server does, by UTF-8 bytes.
test('names are in the order of their bytes', () => {
  const names = ['a', 'ab', 'b', 'Z', 'ä', '\uffff', '\u{1f600}', '\ue000', '座', 'a\u{1f600}', 'a\uffff', ''];
  const byBytes = [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  assert.deepEqual([...names].sort(compareNames), byBytes);
});

// Goal: events arrive whole and once, wherever the network cuts the stream.
// Method: the same bytes in one piece, and in pieces of every size.
test('the stream may be cut anywhere', () => {
  const text = ': hello\n\nid: 1\nevent: granted\ndata: {"a":\ndata: 1}\n\nid:2\r\nevent:lapsed\r\ndata:x\r\n\r\n:beat\n\ndata\n\nid: 3\n\n';
  const whole = new Cutter().push(text);
  assert.deepEqual(whole, [
    { id: '1', event: 'granted', data: '{"a":\n1}' },
    { id: '2', event: 'lapsed', data: 'x' },
    { id: '2', event: 'message', data: '' },
  ]);
  for (let size = 1; size < text.length; size++) {
    const cutter = new Cutter();
    const got = [];
    for (let i = 0; i < text.length; i += size) got.push(...cutter.push(text.slice(i, i + size)));
    assert.deepEqual(got, whole, `in pieces of ${size}`);
  }
});

// Goal: pages join to one list; a page asked again replaces its span and nothing else.
test('pages make a list, and a page asked again replaces its span', () => {
  const listing = new Listing('');
  listing.splice(null, page(['a', 'c', 'e'], true), listing.mark());
  assert.equal(listing.complete, false);
  listing.splice('e', page(['g', 'i']), listing.mark());
  assert.equal(listing.complete, true);
  assert.deepEqual(listed(listing), ['a', 'c', 'e', 'g', 'i']);
  listing.splice('a', page(['b', 'e'], true), listing.mark());
  assert.deepEqual(listed(listing), ['a', 'b', 'e', 'g', 'i']);
  assert.equal(listing.complete, true);
  listing.splice('e', page([]), listing.mark());
  assert.deepEqual(listed(listing), ['a', 'b', 'e']);
  assert.equal(listing.get('g'), undefined);
});

// Goal: events show at once within the loaded part, and beyond it change nothing.
test('events are believed where the list is loaded', () => {
  const listing = new Listing('');
  listing.splice(null, page(['a', 'm'], true), listing.mark());
  listing.apply(event('granted', 'f', '7'), 0);
  assert.equal(listing.apply(event('granted', 'z', '8'), 0), false);
  assert.deepEqual(listed(listing), ['a', 'f', 'm']);
  listing.apply({ ...event('relabelled', 'f', '6'), holder: 'nobody' }, 0);
  listing.apply({ ...event('relabelled', 'f', '7'), holder: 'ada at 10.0.0.7' }, 0);
  assert.deepEqual(
    listing.get('f').holders.map((held) => held.holder),
    ['ada at 10.0.0.7'],
    'the lease with this token has another label',
  );
  listing.apply(event('released', 'f', '6'), 0);
  assert.deepEqual(listed(listing), ['a', 'f', 'm'], 'an older token ends nothing');
  listing.apply(event('lapsed', 'f', '7'), 0);
  assert.deepEqual(listed(listing), ['a', 'm']);
});

// Goal: an answer that is older than an event does not undo the event.
// Method: the event comes between question and answer; the next question then has the last word.
test('an answer does not undo what happened after its question', () => {
  const listing = new Listing('');
  listing.splice(null, page(['a', 'b']), listing.mark());
  const mark = listing.mark();
  listing.apply(event('released', 'a'), 0);
  listing.apply(event('granted', 'c', '9'), 0);
  listing.splice(null, page(['a', 'b']), mark);
  assert.deepEqual(listed(listing), ['b', 'c']);
  listing.splice(null, page(['a', 'b']), listing.mark());
  assert.deepEqual(listed(listing), ['a', 'b']);
});

// Goal: nothing is missed where an answer reaches further than the list did when the event came.
// Method: the first answer, and the next page, each overtaken by a grant; the answer does not know of it yet.
test('an event beyond the list is not forgotten when the list grows', () => {
  const listing = new Listing('');
  const first = listing.mark();
  listing.apply(event('granted', 'b', '5'), 0);
  assert.equal(listing.splice(null, page(['a', 'c'], true), first), true, 'another look is due');
  assert.deepEqual(listed(listing), ['a', 'b', 'c']);
  const second = listing.mark();
  listing.apply(event('granted', 'x', '6'), 0);
  listing.apply(event('granted', 'y', '7'), 0);
  listing.apply(event('released', 'y', '7'), 0);
  listing.splice('c', page(['d']), second);
  assert.deepEqual(listed(listing), ['a', 'b', 'c', 'd', 'x']);
});

// Goal: whoever is granted leaves the line; the others keep their order.
test('a grant takes the first of that name out of the line', () => {
  const listing = new Listing('');
  const held = row('a');
  held.waiters = ['x', 'y', 'x'].map((holder) => ({ holder, since: 0 }));
  held.queueLen = 3;
  listing.splice(null, { resources: [held], more: false }, listing.mark());
  listing.apply(event('released', 'a'), 0);
  listing.apply(event('granted', 'a', '2', 'x'), 0);
  const now = listing.get('a');
  assert.deepEqual(now.waiters.map((waiter) => waiter.holder), ['y', 'x']);
  assert.deepEqual([now.queueLen, now.holders.map((holder) => holder.token)], [2, ['2']]);
});

// Goal: of a crowd all are counted, also those whom the server does not list, and the row stays while there is one.
test('events count holders who are not listed', () => {
  const listing = new Listing('');
  const total = () => listing.get('a')?.holdersTotal;
  listing.splice(null, { resources: [{ ...row('a'), holdersTotal: 3 }], more: false }, listing.mark());
  listing.apply(event('granted', 'a', '9', 'late'), 0);
  assert.equal(total(), 4);
  listing.apply(event('granted', 'a', '9', 'late'), 0);
  assert.equal(total(), 4, 'told twice, counted once');
  for (const [token, left] of [['9', 3], ['1', 2], ['7', 1]]) {
    listing.apply(event('released', 'a', token), 0);
    assert.equal(total(), left);
  }
  assert.deepEqual(listing.get('a').holders, [], 'who is left is not listed');
  listing.apply(event('lapsed', 'a', '8'), 0);
  assert.equal(total(), undefined, 'nobody is left');
});

// Goal: a countdown keeps its pace through the jitter of answers, and follows a renewal.
test('jitter does not move an end, a renewal does', () => {
  const listing = new Listing('');
  const splice = (ends) => listing.splice(null, { resources: [row('a', '1', ends)], more: false }, listing.mark());
  const ends = () => listing.get('a').holders[0].ends;
  splice(10_000);
  splice(10_120);
  assert.equal(ends(), 10_000);
  splice(19_000);
  assert.equal(ends(), 19_000);
});

// Goal: the filter finds by name, holder, waiter and whole token, and not by a part of a token.
test('the filter looks at names, holders, waiters and tokens', () => {
  const one = { ...row('Seat-14', '4711'), waiters: [{ holder: 'Bob', since: 0 }] };
  assert.deepEqual(['seat', 'h-se', 'bob', '4711', '471', 'nix'].map((text) => contains(one, text)), [true, true, true, true, false, false]);
});
