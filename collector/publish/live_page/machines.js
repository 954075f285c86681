// What the run runs on: its machines with GPUs and memory, their ports, and the collectives of its process groups.

import { at, bytes, fill, ms, number, percent, say, times } from "./dom.js";
import { portRow } from "./ports.js";

const unit = (value, digits, name) => (value === null ? "-" : `${number(value, digits)} ${name}`);

const ofTotal = (used, total) =>
  used === null || total === null || !total ? "-" : `${bytes(used)} of ${bytes(total)} (${percent(used / total)})`;

const BYTES_PER_GB = 1e9;
const inGb = (value) => (value === null ? "-" : number(value / BYTES_PER_GB, 1));

/** Format bytes a second sent and received, in GB. */
const bothWays = (sent, received) => (sent === null && received === null ? "-" : `${inGb(sent)}, ${inGb(received)}`);

const conditionOf = ({ throttle_reasons: reasons, xids }) => {
  const throttled = reasons.length ? [`throttled: ${reasons.join(", ").replaceAll("_", " ")}`] : [];
  const errors = xids.length ? [`Xid ${xids.join(", ")}`] : [];
  return [...throttled, ...errors].join("; ") || "-";
};

const machineRow = (one) => ({
  cells: [
    one.node,
    `${number(one.ranks_up)} of ${number(one.ranks)}`,
    conditionOf(one),
    times(one.slowdown_ratio),
    one.gpus ? `${number(one.gpus)}${one.gpu_model === null ? "" : ` ${one.gpu_model}`}` : "-",
    percent(one.utilization_ratio),
    ofTotal(one.memory_used_bytes, one.memory_total_bytes),
    unit(one.temperature_celsius, 0, "°C"),
    unit(one.power_watts, 0, "W"),
    bothWays(one.nvlink_tx_bytes_per_s, one.nvlink_rx_bytes_per_s),
    one.host_memory_available_bytes === null
      ? "-"
      : `${bytes(one.host_memory_available_bytes)} of ${bytes(one.host_memory_total_bytes ?? NaN)}`,
  ],
  right: [1, 3, 5, 6, 7, 8, 9, 10],
});

const groupRow = (one) => ({
  cells: [
    one.dimension,
    number(one.groups),
    one.op,
    one.group,
    number(one.ranks),
    number(one.count),
    ms(one.wait_ns),
    ms(one.transfer_ns),
    ms(one.others_transfer_ns),
    one.bus_bandwidth_bytes_per_s === null ? "-" : number(one.bus_bandwidth_bytes_per_s / 1e9, 2),
  ],
  right: [1, 4, 5, 6, 7, 8, 9],
});

const ncclRow = (one) => ({
  cells: [
    one.communicator,
    one.op,
    number(one.ranks),
    number(one.count),
    number(one.bus_bandwidth_bytes_per_s / BYTES_PER_GB, 2),
    number(one.bus_bandwidth_max_bytes_per_s / BYTES_PER_GB, 2),
  ],
  right: [2, 3, 4, 5],
});

const NAMES = {
  gpus: "GPUs",
  gpu_memory: "GPU memory",
  nvlink: "NVLink",
  host_memory: "Host memory",
  ports: "Network ports",
  groups: "Collectives",
  nccl: "NCCL Inspector",
};

// Not missing where there is no GPU.
const OF_GPUS = new Set(["nvlink", "nccl"]);

/** Hide the columns of a table, counted from 1, that have no value in any row. */
export const hideEmpty = (table) => {
  const rows = [...table.tBodies[0].rows];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const isEmpty = column > 0 && rows.every((row) => row.cells[column].textContent === "-");
    for (const cell of [head, ...rows.map((row) => row.cells[column])]) cell.hidden = isEmpty;
  });
};

/** Show a MachineList. */
export const showMachines = (answer) => {
  const { machines, groups, ports, nccl, absent } = answer;
  fill(at("machines"), machines.map(machineRow));
  fill(at("groups"), groups.map(groupRow));
  fill(at("ports"), ports.map(portRow));
  fill(at("nccl"), nccl.map(ncclRow));
  at("nccl").parentElement.hidden = !nccl.length;
  at("machines").hidden = !machines.length;
  at("groups").hidden = !groups.length;
  at("ports").parentElement.hidden = !ports.length;
  for (const id of ["machines", "ports", "groups"]) hideEmpty(at(id));
  const more = [
    [machines.length, answer.machines_known, "machines: those with errors or throttling first, then the slowest"],
    [ports.length, answer.ports_known, "ports: those that carry no data first, then those with most errors"],
    [groups.length, answer.groups_known, "kinds of collectives, the longest first"],
    [nccl.length, answer.nccl_known, "operations of NCCL, the most frequent first"],
  ].flatMap(([shown, known, what]) => (known > shown ? [`${number(shown)} of ${number(known)} ${what}.`] : []));
  const shown = Object.entries(absent).filter(([name]) => !OF_GPUS.has(name) || absent.gpus === undefined);
  const reasons = shown.map(([name, reason]) => `${NAMES[name]}: ${reason}.`);
  say(at("machines-said"), [...reasons, ...more].join(" "));
};
