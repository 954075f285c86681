// Network ports: what they carry between two samples, and the errors that have come while the page was open.

import { number } from "./dom.js";

const NS_PER_S = 1e9;
const BITS_PER_GBIT = 1e9;
const BYTES_PER_GB = 1e9;
const NAMES_KEPT_MAX = 10000;

// By machine and port: the first sample that was seen, the last one, and the one before it.
const seen = new Map();

/** Forget the samples: those of another run begin anew. */
export const forgetPorts = () => seen.clear();

const nameOf = ({ node, name }) => `${node} ${name}`;

/** Keep a sample; a card that was reset counts from 0, and begins anew. Returns its first, the one before and it. */
const keep = (port) => {
  const name = nameOf(port);
  const known = seen.get(name);
  if (known !== undefined && known.last.read_host_ns === port.read_host_ns) return known;
  const isReset = known !== undefined && (port.tx_bytes < known.last.tx_bytes || port.rx_bytes < known.last.rx_bytes);
  const kept =
    known === undefined || isReset ? { first: port, before: null, last: port } : { ...known, before: known.last, last: port };
  if (seen.size < NAMES_KEPT_MAX || known !== undefined) seen.set(name, kept);
  return kept;
};

/** Return how much a count has grown a second between two samples; null where that is not known. */
const rateOf = ({ before, last }, field) => {
  if (before === null || before[field] === null || last[field] === null) return null;
  const seconds = (last.read_host_ns - before.read_host_ns) / NS_PER_S;
  return seconds > 0 && last[field] >= before[field] ? (last[field] - before[field]) / seconds : null;
};

const scaled = (value, unit, digits) => (value === null ? "-" : number(value / unit, digits));

/** Return a count, and by how much it has grown since the first sample. */
const countOf = ({ first, last }, field) => {
  if (last[field] === null) return "-";
  const grown = first[field] === null ? 0 : last[field] - first[field];
  return grown > 0 ? `${number(last[field])} (+${number(grown)})` : number(last[field]);
};

const STATES = new Map([[true, "up"], [false, "carries no data"]]);

/** Return the row of a port. */
export const portRow = (port) => {
  const kept = keep(port);
  return {
    cells: [
      nameOf(port),
      STATES.get(port.is_active) ?? "-",
      scaled(port.rate_bits_per_s, BITS_PER_GBIT, 0),
      scaled(rateOf(kept, "tx_bytes"), BYTES_PER_GB, 2),
      scaled(rateOf(kept, "rx_bytes"), BYTES_PER_GB, 2),
      countOf(kept, "link_errors"),
      countOf(kept, "transport_errors"),
      scaled(rateOf(kept, "transmit_wait_ticks"), 1, 0),
      scaled(rateOf(kept, "congestion_notifications"), 1, 1),
    ],
    right: [2, 3, 4, 5, 6, 7, 8],
  };
};
