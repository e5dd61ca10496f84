// The list. Only the rows in view are in the document, so a hundred thousand cost what forty cost.
//
// Laws: rows that come or go above the view do not move what is being read; the focus is on the list itself and a
// row is marked in it (aria-activedescendant), so a row that ends under the reader's hands takes no focus with it.

import type { RefObject } from 'preact';
import { useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Resource } from './api';
import { mostRows } from './listing';
import type { Live } from './live';
import { columns, Row } from './row';
import type { Shown } from './shown';

const around = 8;

export interface ListHandle {
  move: (by: number) => void;
  jump: (where: 'first' | 'last' | 'down' | 'up') => void;
  focus: () => void;
  active: () => Resource | undefined;
}

interface Props {
  live: Live;
  shown: Shown;
  narrow: boolean;
  openName: string | null;
  onOpen: (name: string) => void;
  handle: RefObject<ListHandle | null>;
  onActive: (row: Resource | undefined) => void;
}

export function List({ live, shown, narrow, openName, onOpen, handle, onActive }: Props) {
  const { rows } = shown;
  const height = narrow ? 60 : 34;
  const headHeight = narrow ? 0 : 32;
  const grid = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const mark = useRef<{ name: string; index: number } | null>(null);
  const anchor = useRef<{ name: string; index: number; offset: number } | null>(null);

  const activeIndex = indexOf(rows, mark.current);
  const active = rows[activeIndex];
  if (active !== undefined && mark.current !== null) mark.current = { name: active.name, index: activeIndex };

  const first = Math.max(0, Math.floor(view.top / height) - around);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + around);
  const slice = rows.slice(first, last);

  const measure = () => {
    const element = grid.current;
    if (element === null) return;
    setView((old) =>
      old.top === element.scrollTop && old.height === element.clientHeight
        ? old
        : { top: element.scrollTop, height: element.clientHeight },
    );
    const index = Math.floor(element.scrollTop / height);
    const row = rows[index];
    anchor.current =
      row === undefined || element.scrollTop === 0
        ? null
        : { name: row.name, index, offset: element.scrollTop - index * height };
  };

  useLayoutEffect(() => {
    const element = grid.current;
    const held = anchor.current;
    if (element === null || held === null || rows[held.index]?.name === held.name) return;
    const index = rows.findIndex((row) => row.name === held.name);
    if (index >= 0) element.scrollTop = index * height + held.offset;
    measure();
  });

  useEffect(() => {
    const observer = new ResizeObserver(() => measure());
    if (grid.current !== null) observer.observe(grid.current);
    return () => observer.disconnect();
  }, [height]);

  // Another search begins at its top. Before a key can come: it would move a mark that is about to go.
  useLayoutEffect(() => {
    anchor.current = null;
    mark.current = null;
    if (grid.current !== null) grid.current.scrollTop = 0;
    measure();
  }, [shown.query]);

  const viewFirst = Math.floor(view.top / height);
  const viewLast = Math.ceil((view.top + view.height) / height);
  const marked = activeIndex >= viewFirst && activeIndex < viewLast - 1;
  useEffect(() => {
    live.look(shown.spans(viewFirst, viewLast));
    if (viewLast + 50 >= rows.length && shown.growing !== null) void live.more(shown.growing);
  });

  const go = (index: number) => {
    const element = grid.current;
    const target = Math.max(0, Math.min(rows.length - 1, index));
    const row = rows[target];
    if (element === null || row === undefined) return;
    mark.current = { name: row.name, index: target };
    onActive(row);
    const top = target * height;
    const room = element.clientHeight - headHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height > element.scrollTop + room) element.scrollTop = top + height - room;
    setView({ top: element.scrollTop, height: element.clientHeight });
  };

  // Keys can come faster than the list is drawn: each goes on from the mark that the one before it made.
  const at = () => indexOf(rows, mark.current);
  useImperativeHandle(handle, () => ({
    move: (by) => go(at() < 0 ? 0 : at() + by),
    jump: (where) => {
      const page = Math.max(1, Math.floor((view.height - headHeight) / height) - 1);
      if (where === 'first') go(0);
      else if (where === 'last') go(rows.length - 1);
      else go(Math.max(0, at()) + (where === 'down' ? page : -page));
    },
    focus: () => grid.current?.focus(),
    active: () => rows[at()],
  }));

  // By the row that was drawn: rows may have moved since, and a click must not open another one.
  const pick = (row: Resource, index: number) => {
    mark.current = { name: row.name, index };
    onActive(row);
    onOpen(row.name);
  };
  // A mouse that takes the focus is about to click: nothing may move under it.
  const focused = () => {
    if (mark.current === null && grid.current?.matches(':focus-visible')) go(Math.ceil(view.top / height));
  };

  const rendered = activeIndex >= first && activeIndex < last;
  return (
    <div
      role="grid"
      id="list"
      class={`grid${live.stale ? ' stale' : ''}${marked ? ' marked' : ''}`}
      tabIndex={0}
      ref={grid}
      aria-label="Resources"
      aria-rowcount={shown.growing === null ? rows.length + 1 : -1}
      aria-activedescendant={rendered && active !== undefined ? `row-${activeIndex}` : undefined}
      onScroll={measure}
      onFocus={focused}
    >
      <div role="row" class="grid-head" aria-rowindex={1}>
        {columns.map((title) => (
          <div role="columnheader" class="cell">
            {title}
          </div>
        ))}
      </div>
      <div role="rowgroup" class="canvas" style={{ height: `${rows.length * height}px` }}>
        {slice.map((row, i) => (
          <Row
            key={row.name}
            row={row}
            index={first + i}
            top={(first + i) * height}
            active={first + i === activeIndex}
            open={row.name === openName}
            stale={live.stale}
            onPick={pick}
          />
        ))}
      </div>
      {rows.length >= mostRows && <p class="quiet end">There are more. Search for the beginning of a name.</p>}
    </div>
  );
}

/** Where the marked row is now; if it is gone, the row that took its place. */
function indexOf(rows: Resource[], mark: { name: string; index: number } | null): number {
  if (mark === null || rows.length === 0) return -1;
  if (rows[mark.index]?.name === mark.name) return mark.index;
  const found = rows.findIndex((row) => row.name === mark.name);
  return found >= 0 ? found : Math.min(mark.index, rows.length - 1);
}
