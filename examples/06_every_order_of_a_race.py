"""Try every order of deliveries of a tiny system, find a lost update, and replay it."""

from orrery import Node, World, rpc, run
from orrery.engines.virtual.explore import explore
from orrery.parts import Violation


class Account(Node):
    """Two clients read a balance and write it back plus one: a read and a write, not atomic."""

    def start(self) -> None:
        self.balance = 0

    @rpc
    def read(self) -> int:
        return self.balance

    @rpc
    def write(self, balance: int) -> None:
        self.balance = balance
        self.emit(balance=balance)

    async def main(self) -> None:
        if self.id:
            balance = await self.ask(0, Account.read)
            self.tell(0, Account.write, balance + 1)


def lost_update(outcome) -> list[Violation]:
    last = outcome.records[-1].values["balance"]
    said = f"two deposits of 1 left a balance of {last}"
    return [] if last == 2 else [Violation(kind="lost_update", message=said)]


def main() -> None:
    world = World.chosen(3)
    all_ = explore({"node": Account()}, world=world, check=lost_update, stop_at_first=False)
    print(f"{all_.schedules} schedules, {all_.states} states, complete: {all_.complete}")
    print(f"{len(all_.violations)} of them lose an update: {all_.violations[0].message}")
    print("the first such schedule picks these messages:", all_.schedule)
    again = run(Account(), world=world, schedule=all_.schedule)
    print("replayed, the balances written are", [r.values["balance"] for r in again.records])


if __name__ == "__main__":
    main()
