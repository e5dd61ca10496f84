// The head of a pane: whose it is, what the last action did, why a question failed.

import { useLayoutEffect, useRef } from 'preact/hooks';
import { Text } from '../shared/bits';

interface Props {
  name: string;
  note: string | null;
  error: string | null;
  onClose: () => void;
}

export function PaneHead({ name, note, error, onClose }: Props) {
  const heading = useRef<HTMLHeadingElement>(null);
  // Also after an action: the button that had the focus may be gone. Before it is painted, so that no key is lost.
  useLayoutEffect(() => heading.current?.focus(), [name, note]);
  return (
    <>
      <div class="detail-head">
        <h2 id="detail-title" ref={heading} tabIndex={-1}>
          <Text of={name} titled={false} />
        </h2>
        <button type="button" class="square" onClick={onClose} aria-label="Close" title="Close (Esc)">
          ×
        </button>
      </div>
      <div role="status" class="note-place">
        {note !== null && <p class="note">{note}</p>}
      </div>
      {error !== null && (
        <p class="wrong" role="alert">
          {error}
        </p>
      )}
    </>
  );
}
