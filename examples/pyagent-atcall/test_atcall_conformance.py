from pyagent_atcall import ATCALL

from pyagent.plugin import Dialect
from pyagent.testing import DialectConformance


class TestAtCall(DialectConformance):
    answers = (
        '@think They want the weather. @answer Yes. @call look_up {"city": "Rome"}@end',
        '@call look_up {"city": "Oslo", "days": 3}@end',
    )

    def make(self) -> Dialect:
        return ATCALL
