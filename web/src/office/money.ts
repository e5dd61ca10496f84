// Money in words. Pure. Prices come in minor units; how many there are to a whole depends on the currency.

function digits(currency: string): number {
  try {
    return new Intl.NumberFormat('en', { style: 'currency', currency }).resolvedOptions().maximumFractionDigits ?? 2;
  } catch {
    return 2; // not a currency that is known here
  }
}

/** `45.00`, without the currency: as in the label of a seat, where it would be said four hundred times. */
export function amount(minor: number, currency: string): string {
  const places = digits(currency);
  return (minor / 10 ** places).toLocaleString('en-US', { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** `45.00 EUR`. */
export const price = (minor: number, currency: string): string => `${amount(minor, currency)} ${currency}`.trim();
