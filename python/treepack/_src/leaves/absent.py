# A placeholder for the parts of a state that are not loaded.
class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
