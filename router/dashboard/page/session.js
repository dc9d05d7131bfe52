// What this tab remembers until it is closed: the key, and the operator's name.

const KEY = "octet-key";
const NAME = "octet-name";
const here = new Map();

function read(name) {
  try {
    return sessionStorage.getItem(name) ?? here.get(name) ?? "";
  } catch {
    return here.get(name) ?? "";
  }
}

function write(name, value) {
  here.set(name, value);
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // a browser that keeps nothing: then only for this page
  }
}

export const key = () => read(KEY);
export const setKey = (value) => write(KEY, value);
export const operatorName = () => read(NAME);
export const setOperatorName = (value) => write(NAME, value);
