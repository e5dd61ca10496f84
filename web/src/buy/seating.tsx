// Choosing seats: the best ones by asking, or by oneself in the map or the list.

import { useState } from 'preact/hooks';
import { Text } from '../shared/bits';
import { counted } from '../shared/words';
import { Legend } from '../office/glyphs';
import type { Hall } from '../office/hall';
import { buyerWords, type Shown } from '../office/labels';
import { SeatList } from '../office/list';
import { SeatMap, type Look } from '../office/map';
import { price } from '../office/money';
import type { Shop } from './shop';

const states: Shown[] = ['free', 'picked', 'mine', 'held', 'paying', 'sold', 'blocked'];
type Way = 'best' | 'map' | 'list';

export function Seating({ shop, hall, narrow }: { shop: Shop; hall: Hall; narrow: boolean }) {
  const [chosen, setWay] = useState<Way | null>(null);
  // On a phone a map is small and a question is quick.
  const way = chosen ?? (narrow ? 'best' : 'map');
  const look: Look = {
    hall,
    currency: shop.currency,
    shownAs: (id) => shop.shown(id),
    word: (id) => buyerWords[shop.shown(id)],
    pressed: (id) => pressed(shop, id),
    onPick: (id) => shop.pick(id),
  };
  const free = shop.feed.seats.count(hall.seats.keys()).free;
  const tab = (name: Way, text: string) => (
    <button type="button" aria-pressed={way === name} onClick={() => setWay(name)}>
      {text}
    </button>
  );
  return (
    <>
      <div class="ways">
        <div class="tabs" role="group" aria-label="How to choose">
          {tab('best', 'Best available')}
          {tab('map', 'Map')}
          {tab('list', 'List')}
        </div>
        <span class="quiet">{counted(free, 'seat')} available · prices in {shop.currency}</span>
      </div>
      {way === 'best' && <Best shop={shop} hall={hall} />}
      {way === 'map' && <SeatMap {...look} />}
      {way === 'list' && <SeatList {...look} />}
      {way !== 'best' && <Legend states={states} words={buyerWords} />}
      {shop.areas.length > 0 && <Areas shop={shop} />}
    </>
  );
}

function pressed(shop: Shop, id: string): boolean | undefined {
  const shown = shop.shown(id);
  if (!shop.selling || shop.basket.held?.state === 'paying') return undefined;
  if (shown === 'mine' || shown === 'picked') return true;
  return shown === 'free' || shown === 'leaving' ? false : undefined;
}

function Best({ shop, hall }: { shop: Shop; hall: Hall }) {
  const [qty, setQty] = useState(2);
  const [section, setSection] = useState('');
  const [adjacent, setAdjacent] = useState(true);
  const { held, busy } = shop.basket;
  const blocked = held !== null || busy !== null || !shop.selling;
  const submit = (event: Event) => {
    event.preventDefault();
    if (!blocked) void shop.basket.hold({ best: { qty, adjacent, ...(section !== '' && { section }) } });
  };
  const most = Math.max(1, shop.most);
  return (
    <form class="best" onSubmit={submit}>
      <h2>The best seats there are</h2>
      <div class="best-fields">
        <label>
          How many
          <select value={String(qty)} onChange={(event) => setQty(Number(event.currentTarget.value))}>
            {Array.from({ length: most }, (_, i) => (
              <option value={String(i + 1)}>{i + 1}</option>
            ))}
          </select>
        </label>
        <label>
          Where
          <select value={section} onChange={(event) => setSection(event.currentTarget.value)}>
            <option value="">anywhere</option>
            {hall.sections.map(({ id, name }) => (
              <option value={id}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      <label class="check">
        <input type="checkbox" checked={adjacent} onChange={(event) => setAdjacent(event.currentTarget.checked)} />
        Seats side by side
      </label>
      <button type="submit" class="primary large" aria-disabled={blocked}>
        {busy === 'hold' ? 'Asking…' : `Hold the best ${counted(qty, 'seat')}`}
      </button>
      {held !== null && <p class="quiet">You hold seats already. Give them back first, or add single seats in the map or the list.</p>}
    </form>
  );
}

/** Places without a number, as many as one wants. */
function Areas({ shop }: { shop: Shop }) {
  const fixed = shop.basket.held?.state === 'paying' || shop.basket.held?.paid === true || !shop.selling;
  return (
    <section class="areas" aria-labelledby="areas-title">
      <h2 id="areas-title">Places without a number</h2>
      <ul>
        {shop.areas.map((area) => {
          const free = shop.feed.seats.places(area.id) ?? area.capacity;
          const qty = shop.places.get(area.id) ?? 0;
          const most = Math.min(shop.most, free);
          return (
            <li key={area.id}>
              <label for={`area-${area.id}`}>
                <Text of={area.name} titled={false} />, {price(area.price, shop.currency)}
              </label>
              <select
                id={`area-${area.id}`}
                value={String(qty)}
                disabled={fixed}
                onChange={(event) => shop.setPlaces(area.id, Number(event.currentTarget.value))}
              >
                {Array.from({ length: Math.max(most, qty) + 1 }, (_, i) => (
                  <option value={String(i)}>{i}</option>
                ))}
              </select>
              <span class="quiet">{free === 0 ? 'none free' : `${counted(free, 'place')} free`}</span>
            </li>
          );
        })}
      </ul>
    </section>
  );
}
