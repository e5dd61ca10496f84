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
const { fromAddress, toAddress } = await load('locks/address');
const { cut, parseExactly, pretty } = await load('locks/recipes/body');
const describe = await load('locks/recipes/describe');

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

// Goal: a moment to come is said in one unit, and one that is over is called due.
test('how long until then', () => {
  assert.deepEqual([1, 12_000, 59_999, 60_000, 299_000, 7_200_000, 90_000_000].map(words.ahead), [
    'in 1 s',
    'in 12 s',
    'in 1 min',
    'in 1 min',
    'in 4 min',
    'in 2 h',
    'in 1 d',
  ]);
  assert.deepEqual([0, -999, -4000, -250_000].map(words.ahead), ['due now', 'due now', 'due 4 s ago', 'due 4 min ago']);
  assert.equal(words.utc('2026-11-18T04:00:00.250+01:00'), '2026-11-18 03:00:00 UTC');
  assert.equal(words.utc('never'), 'never');
});

// Goal: output keeps its lines and tabs, loses the colours of a terminal, and hides nothing else.
test('lines of output', () => {
  const said = words.lines('\u001b[1;31mred\u001b[0m\r\n\tin\u0007dented \n');
  assert.deepEqual(said, [
    { text: 'red', code: false },
    { text: '\n\t', code: false },
    { text: 'in', code: false },
    { text: 'U+0007', code: true },
    { text: 'dented ', code: false },
    { text: '\n', code: false },
  ]);
});

// Goal: a body is readable, is cut at a length and never within a character, and its numbers are those that were pushed.
test('bodies of jobs', () => {
  assert.deepEqual(pretty({ to: 'ada', list: [1] }), { text: '{\n  "to": "ada",\n  "list": [\n    1\n  ]\n}', rest: 0 });
  assert.deepEqual([null, 'text', 0].map((body) => pretty(body).text), ['null', '"text"', '0']);
  assert.deepEqual(pretty('x'.repeat(2100)), { text: `"${'x'.repeat(1999)}`, rest: 102 });
  assert.deepEqual(cut('ab😀c', 3), { text: 'ab', rest: 3 });
  assert.deepEqual(cut('ab😀c', 4), { text: 'ab😀', rest: 1 });
  assert.deepEqual(cut('a\nb\nc\n', 100, 2), { text: 'a\nb', rest: 3 });
  assert.deepEqual(parseExactly('{"a":[1,2.5,"x"]}'), { a: [1, 2.5, 'x'] });
  // Node 20 cannot keep digits; browsers can, and are tested for it.
  if (JSON.rawJSON) assert.equal(JSON.stringify(parseExactly('[9007199254740993,1.0]')), '[9007199254740993,1.0]');
});

// Goal: a run is told whole in one sentence, and ticks that nobody ran claim neither machine nor lateness.
test('runs in words', () => {
  const run = { tick: '2026-11-18T03:00:00Z', upto: '2026-11-18T03:00:00Z', ticks: 1, machine: 'host-1', started_at: '2026-11-18T03:00:01Z' };
  const failed = { ...run, state: 'failed', ended_at: '2026-11-18T03:04:13Z', code: 2, late_ms: 1200 };
  assert.equal(describe.sentenceOf(failed), 'failed: 2026-11-18 03:00:00 UTC, on host-1, 1.2 s late, exit code 2');
  assert.equal(describe.took(failed), '4 min 12 s');
  const missed = { ...run, state: 'missed', upto: '2026-11-18T05:00:00Z', ticks: 3, machine: null, ended_at: null, code: null, late_ms: 0 };
  assert.equal(describe.sentenceOf(missed), 'missed, 3 ticks: 2026-11-18 03:00:00 UTC to 2026-11-18 05:00:00 UTC');
  assert.equal(describe.took(missed), null);
  assert.deepEqual([0, 999, 1000, 95_000].map(describe.lateness), ['on time', 'on time', '1.0 s late', '1 min 35 s late']);
  assert.equal(new Set(Object.values(describe.signs)).size, 6, 'no two states have the same sign');
});

// Goal: nobody takes a count that was not finished for the whole, nor a retry of some for one of all.
test('figures of a queue and outcomes', () => {
  const few = { ready: 9000, delayed: 999, taken: 3, retried: 12, dead: 0 };
  assert.deepEqual(describe.figuresOf(few), { waiting: '9,999', ready: '9,000', delayed: '999', taken: '3', retried: '12', dead: '0' });
  const many = { ready: 9000, delayed: 1000, taken: 3, retried: 0, dead: 10_000 };
  assert.deepEqual(describe.figuresOf(many), { waiting: '10,000+', ready: '9,000+', delayed: '1,000+', taken: '3', retried: '0+', dead: '10,000+' });
  assert.equal(describe.settled('retry', 2, 2), 'Retried 2 jobs.');
  assert.equal(describe.settled('drop', 3, 2), 'Dropped 2 of 3 jobs: one was no longer dead.');
  assert.equal(describe.settled('drop', 3, 0), 'Dropped 0 of 3 jobs: 3 were no longer dead.');
});

// Goal: an address leads back to what was seen; what it says of no tab is a tab of leases, as in old links.
test('addresses', () => {
  const places = [
    { view: 'leases', query: '', resource: null, recipe: null },
    { view: 'leases', query: 'a&b=c', resource: '#r%', recipe: null },
    { view: 'queues', query: '', resource: null, recipe: 'mail/ü' },
  ];
  for (const place of places) assert.deepEqual(fromAddress(`#${toAddress(place)}`), place);
  assert.equal(fromAddress('#q=x&r=y').view, 'leases');
  assert.equal(fromAddress('#t=nonsense').view, 'leases');
});
