// What can be done to what was sold: taken back, or moved to other seats. Money follows by itself.

import { useState } from 'preact/hooks';
import type { Feed } from '../office/feed';
import type { Hall } from '../office/hall';
import { place } from '../office/labels';
import type { Desk } from './desk';
import { Reason } from './reason';

interface Props {
  desk: Desk;
  hall: Hall;
  feed: Feed;
  order: string;
  id: string;
}

/** More free seats than this are not proposed: whoever knows the seat writes it. */
const most = 500;

export function OrderActs(props: Props) {
  const [asking, setAsking] = useState<'void' | 'move' | null>(null);
  const close = () => setAsking(null);
  return (
    <div class="actions">
      <button type="button" onClick={() => setAsking('move')}>
        Move…
      </button>
      <button type="button" class="danger" onClick={() => setAsking('void')}>
        Void…
      </button>
      {asking === 'void' && <Void {...props} onClose={close} />}
      {asking === 'move' && <Move {...props} onClose={close} />}
    </div>
  );
}

function Void({ desk, hall, order, id, onClose }: Props & { onClose: () => void }) {
  const [whole, setWhole] = useState(false);
  const seat = hall.seats.get(id);
  if (seat === undefined) return null;
  const choice = (all: boolean, words: string) => (
    <label class="inline">
      <input type="radio" name="void-what" checked={whole === all} autoFocus={!all} onChange={() => setWhole(all)} /> {words}
    </label>
  );
  return (
    <Reason
      title={`Void ${place(seat)}`}
      says="What is taken back is free at once, and what was paid for it goes back to the buyer."
      action="Void now"
      onClose={onClose}
      onDo={(reason) => desk.voidOrder(order, whole ? null : [id], reason)}
    >
      <fieldset class="choice">
        <legend>What is taken back</legend>
        {choice(false, 'Only this seat')}
        {choice(true, 'The whole order')}
      </fieldset>
    </Reason>
  );
}

function Move({ desk, hall, feed, order, id, onClose }: Props & { onClose: () => void }) {
  const [to, setTo] = useState('');
  const seat = hall.seats.get(id);
  if (seat === undefined) return null;
  const free = [...hall.seats.keys()].filter((other) => feed.seats.state(other) === 'free');
  const missing = () => {
    if (to.trim() === '') return 'Please say to which seat.';
    return hall.seats.has(to.trim()) ? null : `There is no seat ${to.trim()} in this hall.`;
  };
  return (
    <Reason
      title={`Move ${place(seat)}`}
      says="The order stays the buyer's, with the new seat. If it costs less, the difference goes back; if it costs more, the buyer owes it."
      action="Move now"
      onClose={onClose}
      onDo={(reason) => desk.moveOrder(order, id, to.trim(), reason)}
      missing={missing}
    >
      <label for="move-to">To the seat</label>
      <input
        id="move-to"
        type="text"
        autoFocus
        autoComplete="off"
        spellcheck={false}
        list={free.length <= most ? 'free-seats' : undefined}
        value={to}
        onInput={(event) => setTo(event.currentTarget.value)}
      />
      {free.length <= most && (
        <datalist id="free-seats">
          {free.map((other) => (
            <option value={other} />
          ))}
        </datalist>
      )}
    </Reason>
  );
}
