// The same seats as a list: row by row, with price and state in words. Whatever the map can do, this can.

import { useRef, useState } from 'preact/hooks';
import type { Look } from './map';
import type { Placed } from './hall';
import { SeatButton } from './seat';

export function SeatList(props: Look) {
  const { hall } = props;
  const [section, setSection] = useState('');
  const [open, setOpen] = useState(false);
  const sections = hall.sections.filter(({ id }) => section === '' || id === section);
  const listed = (seat: Placed) => !open || ['free', 'picked', 'mine', 'leaving'].includes(props.shownAs(seat.id));
  return (
    <div class="list">
      <div class="filters">
        <label class="inline">
          Section{' '}
          <select value={section} onChange={(event) => setSection(event.currentTarget.value)}>
            <option value="">all</option>
            {hall.sections.map(({ id, name }) => (
              <option value={id}>{name}</option>
            ))}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={open} onChange={(event) => setOpen(event.currentTarget.checked)} />
          Only seats I can have
        </label>
      </div>
      {sections.map(({ id, name, rows }) => (
        <section key={id} aria-label={`Section ${name}`}>
          <h2>Section {name}</h2>
          {rows.map((row) => (
            <Row key={row.id} look={props} name={row.id} seats={row.seats.filter(listed)} />
          ))}
        </section>
      ))}
    </div>
  );
}

/** One stop for Tab in each row; arrows lead along it. */
function Row({ look, name, seats }: { look: Look; name: string; seats: Placed[] }) {
  const [at, setAt] = useState<string | null>(null);
  const line = useRef<HTMLDivElement>(null);
  if (seats.length === 0) return null;
  const reached = seats.some(({ id }) => id === at) ? at : seats[0]?.id;
  const pressed = (event: KeyboardEvent) => {
    const from = event.target instanceof Element ? event.target.getAttribute('data-seat') : null;
    const place = seats.findIndex(({ id }) => id === from);
    const steps: Record<string, number> = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: seats.length - 1 };
    const to = seats[steps[event.key] ?? -1];
    if (place < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    setAt(to.id);
    line.current?.querySelector<HTMLElement>(`[data-seat="${CSS.escape(to.id)}"]`)?.focus();
  };
  return (
    <div class="row-line">
      <h3>Row {name}</h3>
      <div class="row-seats" role="group" aria-label={`Row ${name}`} ref={line} onKeyDown={pressed}>
        {seats.map((seat) => (
          <SeatButton
            key={seat.id}
            wide
            seat={seat}
            currency={look.currency}
            shown={look.shownAs(seat.id)}
            word={look.word(seat.id)}
            pressed={look.pressed(seat.id)}
            marked={look.marked?.(seat.id) ?? false}
            reached={seat.id === reached}
            onPick={(id, event) => {
              setAt(id);
              look.onPick(id, event);
            }}
          />
        ))}
      </div>
    </div>
  );
}
