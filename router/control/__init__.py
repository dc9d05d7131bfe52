"""What an operator and the machines may change while everything serves: breakers, knobs, ladders, lanes, cordons."""
