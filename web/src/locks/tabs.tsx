// The tabs: leases, and what the server has beside them. One of them is in the order of the Tab key; arrows, Home and
// End go to the others (the tab pattern of ARIA).

import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import type { View } from './address';

export const titles: Record<View, string> = {
  leases: 'Leases',
  elections: 'Elections',
  schedules: 'Schedules',
  queues: 'Queues',
};

interface Props {
  views: readonly View[];
  view: View;
  onView: (view: View) => void;
}

export function Tabs({ views, view, onView }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const pressed = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = target(event.key, views.indexOf(view), views.length);
    const next = to === null ? undefined : views[to];
    if (to === null || next === undefined) return;
    event.preventDefault();
    onView(next);
    list.current?.querySelectorAll('button')[to]?.focus();
  };
  return (
    <div class="views" role="tablist" aria-label="What is shown" ref={list} onKeyDown={pressed}>
      {views.map((one) => (
        <button
          key={one}
          type="button"
          role="tab"
          id={`tab-${one}`}
          aria-selected={one === view}
          aria-controls={one === view ? 'panel' : undefined}
          tabIndex={one === view ? 0 : -1}
          onClick={() => onView(one)}
        >
          {titles[one]}
        </button>
      ))}
    </div>
  );
}

/** Where a key leads from tab `at`; the ends are joined. */
function target(key: string, at: number, all: number): number | null {
  if (key === 'ArrowRight') return (at + 1) % all;
  if (key === 'ArrowLeft') return (at + all - 1) % all;
  if (key === 'Home') return 0;
  return key === 'End' ? all - 1 : null;
}

/** What the chosen tab shows. */
export function Panel({ view, children }: { view: View; children: ComponentChildren }) {
  return (
    <div class="panel" id="panel" role="tabpanel" aria-labelledby={`tab-${view}`}>
      {children}
    </div>
  );
}
