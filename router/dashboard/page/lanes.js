// What a lane is called, and which is which.

export const laneName = (lane) => lane.adapter || "bare model";
export const laneOf = (view, status) => view.lanes.find((lane) => lane.status === status) ?? null;
