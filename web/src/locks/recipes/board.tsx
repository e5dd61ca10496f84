// A list of a few dozen lines: a table where there is room, cards where there is none.

import type { ComponentChildren } from 'preact';
import { Text } from '../../shared/bits';
import type { Live } from '../live';

/** What the list of every tab is given. */
export interface Shared {
  live: Live;
  /** What is shown may no longer be true. */
  old: boolean;
  openName: string | null;
  onOpen: (name: string) => void;
}

interface Column {
  title: string;
  means?: string;
}

interface TableProps {
  kind: string;
  label: string;
  columns: Column[];
  old: boolean;
  children: ComponentChildren;
}

export function Table({ kind, label, columns, old, children }: TableProps) {
  return (
    <div class={`board board-${kind}${old ? ' stale' : ''}`} role="table" aria-label={label}>
      <div role="rowgroup">
        <div role="row" class="line board-head">
          {columns.map(({ title, means }) => (
            <div role="columnheader" class="cell" title={means}>
              {title}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup">{children}</div>
    </div>
  );
}

interface LineProps {
  name: string;
  open: boolean;
  /** What a press of the name does, for those who hear it. */
  does: string;
  onOpen: (name: string) => void;
  /** Beside the name. */
  tags?: ComponentChildren;
  below?: ComponentChildren;
  children: ComponentChildren;
}

/** The whole line can be clicked; its name is the button. */
export function Line({ name, open, does, onOpen, tags, below, children }: LineProps) {
  return (
    <div role="row" class={`line${open ? ' open' : ''}`} onClick={() => onOpen(name)}>
      <div role="rowheader" class="cell title">
        <div class="title-line">
          <button type="button" class="name opener" data-name={name} aria-expanded={open} aria-description={does}>
            <Text of={name} />
          </button>
          {tags}
        </div>
        {below}
      </div>
      {children}
    </div>
  );
}

/** One cell. Where lines are cards, the label stands in it. */
export function Cell({ label, kind = '', children }: { label: string; kind?: string; children: ComponentChildren }) {
  return (
    <div role="cell" class={`cell ${kind}`} data-label={label}>
      {children}
    </div>
  );
}
