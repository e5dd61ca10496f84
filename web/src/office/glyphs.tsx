// The signs of the states. Each has a shape of its own: colour only helps.

import type { Shown } from './labels';

/** Once in the document; every seat refers to it. */
export function Glyphs() {
  return (
    <svg class="hidden" aria-hidden="true" focusable="false">
      <symbol id="g-free" viewBox="0 0 20 20">
        <rect x="2" y="2" width="16" height="16" rx="4" class="line" />
      </symbol>
      <symbol id="g-picked" viewBox="0 0 20 20">
        <rect x="1" y="1" width="18" height="18" rx="4" class="body" />
        <path d="M5 10.5l3.5 3.5L15 6.5" class="mark" />
      </symbol>
      <symbol id="g-mine" viewBox="0 0 20 20">
        <circle cx="10" cy="10" r="9.5" class="body" />
        <path d="M5.5 10.5l3 3L14.5 7" class="mark" />
      </symbol>
      <symbol id="g-leaving" viewBox="0 0 20 20">
        <circle cx="10" cy="10" r="8.5" class="line" />
        <path d="M6 10h8" class="stroke" />
      </symbol>
      <symbol id="g-held" viewBox="0 0 20 20">
        <path d="M10 2l8 8-8 8-8-8z" class="line" />
      </symbol>
      <symbol id="g-paying" viewBox="0 0 20 20">
        <path d="M10 2l8 8-8 8-8-8z" class="body" />
      </symbol>
      <symbol id="g-sold" viewBox="0 0 20 20">
        <path d="M4 4l12 12M16 4L4 16" class="stroke" />
      </symbol>
      <symbol id="g-blocked" viewBox="0 0 20 20">
        <path d="M3 10h14" class="stroke" />
      </symbol>
    </svg>
  );
}

export function Glyph({ of }: { of: Shown }) {
  return (
    <svg class={`glyph g-${of}`} aria-hidden="true" focusable="false">
      <use href={`#g-${of}`} />
    </svg>
  );
}

export function Legend({ states, words }: { states: Shown[]; words: Record<Shown, string> }) {
  return (
    <ul class="legend" aria-label="What the signs mean">
      {states.map((state) => (
        <li>
          <Glyph of={state} /> {words[state]}
        </li>
      ))}
    </ul>
  );
}
